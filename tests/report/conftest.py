"""A headless browser driven over a pipe by the standard library; tests that need it say why they skip."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cosformer.report.measurements import Measurement, Results

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_SECONDS = 60.0
_FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
_FLAGS += ["--hide-scrollbars", "--remote-debugging-pipe"]
# gives the two pipes the numbers that the browser expects, whatever they are here
_START = """
import os, sys
for number, pipe in enumerate([os.dup(int(name)) for name in sys.argv[1:3]], start=3):
    os.dup2(pipe, number)
    os.set_inheritable(number, True)  # dup2 leaves it as it is where both are the same
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Speaks the DevTools protocol: JSON objects with a NUL after each, in through file 3 and out through file 4."""

    def __init__(self, program: str, profile: Path) -> None:
        to_child, self._write = os.pipe()
        self._read, from_child = os.pipe()
        pipes = (to_child, from_child)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *map(str, pipes), program, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=pipes,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for pipe in pipes:
            os.close(pipe)
        self._buffer, self._number = b"", 0
        self.events: list[dict[str, Any]] = []
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def open(self, page: Path, width: int, scheme: str = "light") -> None:
        """Show ``page`` in a window of ``width`` pixels and wait until it is loaded."""
        window = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **window)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.call("Page.navigate", url=page.as_uri())
        end = time.monotonic() + _SECONDS
        while not self.run("document.readyState === 'complete' && location.protocol === 'file:'"):
            assert time.monotonic() < end, f"{page} does not finish loading"
            time.sleep(0.05)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def errors(self) -> list[dict[str, Any]]:
        """What the console complained about, and uncaught exceptions, since the page was opened."""
        found = []
        for event in self.events:
            kind, params = event.get("method"), event.get("params", {})
            logged = kind == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning")
            called = kind == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert")
            if logged or called or kind == "Runtime.exceptionThrown":
                found.append(params)
        return found

    def requests(self) -> list[str]:
        """The addresses that were asked for, data: apart."""
        sent = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    def close(self) -> None:
        os.close(self._write)  # the browser leaves when nobody speaks to it
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser has gone"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser is installed: looked for {', '.join(NAMES)}")
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


def _measured(kind: str, **more: Any) -> Measurement:
    return Measurement(**{"kind": kind, "attention": "cosformer", "unit": "times faster", "better": "higher", **more})


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder of made-up results of every kind; each number in them is looked for in the page."""
    folder = tmp_path / "results"
    folder.mkdir()
    machine = {"cpu": "another CPU", "instructions": "AVX2", "cores": 2, "threads": 2, "system": "Linux x86_64"}
    machine |= {"python": "3.11", "torch": "2.9", "load": 0.1}
    spread = {"value": 12.5, "low": 12.0, "high": 13.0}
    times = [
        _measured("forward", mode=mode, length=n, baseline="sdpa", **spread, milliseconds=a, baseline_milliseconds=b)
        for mode in ("causal", "non-causal")
        for n, a, b in ((1024, 10.24, 105.0), (4096, 40.96, 1678.0))
    ]
    zoo = [
        _measured(kind, attention=name, mode="plain", length=n, value=value, milliseconds=value, unit="MB")
        for name in ("cosformer", "linear")
        for kind in ("time", "memory")
        for n, value in ((1024, 3.0), (2048, 6.5))
    ]
    peers = [_measured("forward", attention="local", mode="causal", baseline="a package", **spread)]
    finding = {"form": "causal, padded", "backend": "chunked", "dtype": "float64", "output": 3e-16, "gradient": 4e-15}
    check = {"exactness": [finding | {"limit": 1e-12, "passed": True}], "passed": True}
    benches = {"attention": times, "zoo": zoo, "peers": peers}
    settings = {"batch": 2, "width": 256}
    for name, found in benches.items():
        made = Results(name, "cosformer bench attention", "2026-01-02", machine, settings, tuple(found))
        (folder / f"{name}.json").write_text(made.json())
    (folder / "check.json").write_text(json.dumps(check))
    return folder
