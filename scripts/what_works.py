"""Print the table of docs/reference/what-works.md: options by calls, and the errors that refuse the others."""

import textwrap

from rnnkit.call.options import CALLS, PLACES, TABLE, Unsupported


def markdown() -> str:
    """The table, with a number for each refusal, and the refusals."""
    columns = *CALLS, *PLACES
    entries = (entry for row in TABLE.values() for entry in row.entries.values())
    refusals = dict.fromkeys(entry for entry in entries if isinstance(entry, Unsupported))
    numbers = {refused: f"no ({number})" for number, refused in enumerate(refusals, 1)}
    lines = ["| |" + "".join(f" {column} |" for column in columns), "|---" * (len(columns) + 1) + "|"]
    for name, row in TABLE.items():
        cells = (numbers[cell] if isinstance(cell, Unsupported) else cell for cell in map(row.entries.get, columns))
        lines.append(f"| {name} |" + "".join(f" {cell} |" for cell in cells))
    lines.append("")
    for number, refused in enumerate(refusals, 1):
        expected = refused.expected.format(desc=_AnyNetwork)
        text = f"{number}. `{refused.kind.__name__}`: {refused.argument} must {expected}"
        text = f"{text}; {refused.cure}" if refused.cure else text
        lines += textwrap.wrap(text, 120, subsequent_indent="   ", break_long_words=False)
    return "\n".join(lines) + "\n"


class _AnyNetwork:
    dtype = "this dtype"


if __name__ == "__main__":
    print(markdown(), end="")
