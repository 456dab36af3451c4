"""Chromium without a window, driven through the pipes of its debugging protocol."""

import base64
import functools
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

PROGRAM = next((one for one in ("chromium", "chromium-browser", "google-chrome") if shutil.which(one)), None)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@contextmanager
def served(folder):
    """The address of a server of a folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Page:
    """A page; `value(text)` is what JavaScript computes, also a promise's."""

    def __init__(self, write, read):
        self._write, self._read, self._count, self._session = write, read, 0, None

    def open(self, address):
        found = self._call("Target.createTarget", url="about:blank")
        found = self._call("Target.attachToTarget", targetId=found["targetId"], flatten=True)
        self._session = found["sessionId"]
        self._call("Page.enable")
        self._call("Page.navigate", url=address)
        while self.value("document.readyState + location.protocol") != "completehttp:":
            time.sleep(0.05)

    def value(self, text):
        found = self._call("Runtime.evaluate", expression=text, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition, seconds=60):
        """Wait until a condition in JavaScript holds."""
        return self.value(f"""new Promise((done, failed) => {{
            const end = Date.now() + {1000 * seconds}, look = () => ({condition}) ? done(true)
                : Date.now() > end ? failed(new Error(document.body.innerText)) : setTimeout(look, 50);
            look();
        }})""")

    def screenshot(self):
        return base64.b64decode(self._call("Page.captureScreenshot", format="png")["data"])

    def _call(self, method, **parameters):
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        self._write.write(json.dumps(message).encode() + b"\0")
        self._write.flush()
        while True:
            text = bytearray()
            while (byte := self._read.read(1)) != b"\0":
                assert byte, "Chromium has ended"
                text += byte
            answer = json.loads(text)
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]


@contextmanager
def page(address):
    """A page of Chromium that shows an address."""
    (theirs, write), (read, own) = os.pipe(), os.pipe()
    moved = f'exec {PROGRAM} "$@" 3<&{theirs} 4>&{own}'
    flags = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe --no-first-run --window-size=900,640".split()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = ["bash", "-c", moved, "bash", *flags, f"--user-data-dir={folder}"]
        process = subprocess.Popen(command, pass_fds=(theirs, own), stderr=subprocess.DEVNULL)
        os.close(theirs)
        os.close(own)
        try:
            with os.fdopen(write, "wb") as writer, os.fdopen(read, "rb", 0) as reader:
                found = Page(writer, reader)
                found.open(address)
                yield found
        finally:
            process.kill()
            process.wait()
