"""Put a language model of `rnnkit train` on a web page, as WebAssembly.

It needs clang and lld:

    python -m examples.browser.export letters.npz page
    python -m http.server -d page

The page has the model twice: `exact` computes the bits of rnnkit with a
fused multiply-add in software, `plain` rounds products before they are
added, which is faster.
"""

import argparse
import base64
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import rnnkit

HERE = Path(__file__).parent
FORMS = {"exact": "-DRK_SOFT_FMA", "plain": "-DRK_PLAIN_FMA"}
EXPORTS = "weights_at", "x_at", "y_at", "begin", "step"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="file of rnnkit train")
    parser.add_argument("folder", type=Path, help="of the page")
    export(**vars(parser.parse_args(arguments)))


def export(model: Path, folder: Path) -> None:
    """Write the page of a model into a folder."""
    net = rnnkit.load(model)
    folder.mkdir(parents=True, exist_ok=True)
    readout = np.concatenate(
        [net.arrays["output_weight"].ravel(), net.arrays["output_bias"]]
    )
    with tempfile.TemporaryDirectory() as made:
        net.export_c(
            made, name="letters", readout=readout, weights="binary"
        )
        shutil.copy(Path(made) / "letters.bin", folder)
        shutil.copy(HERE / "page.c", made)
        for name, form in FORMS.items():
            target = folder / f"letters-{name}.wasm"
            flags = "--target=wasm32 -O2 -msimd128 -ffp-contract=off"
            flags += f" -ffreestanding -nostdlib {form} -Wl,--no-entry"
            exports = [f"-Wl,--export={one}" for one in EXPORTS]
            command = ["clang", *flags.split(), *exports]
            command += ["page.c", "letters.c", "-o", target.resolve()]
            subprocess.run(command, cwd=made, check=True)
    embedding = net.arrays["embedding"].astype("<f4").tobytes()
    facts = {
        "alphabet": net.arrays["alphabet"].tolist(),
        "embedding": base64.b64encode(embedding).decode(),
        "weights": int(net.weights.size + readout.size),
    }
    (folder / "letters.json").write_text(json.dumps(facts))
    for name in ("index.html", "app.js"):
        shutil.copy(HERE / name, folder)


if __name__ == "__main__":
    main()
