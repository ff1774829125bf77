"""The report in headless Chromium: opened from disk and clicked through; no text of the run runs there."""

import json
import math
import os
import shutil
import subprocess

import pytest

from rankwise.diagnose.report import write_report

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
if os.environ.get("CI"):  # it has both: .ci/run installs Chromium, the dev extra websocket-client
    import websocket
else:
    websocket = pytest.importorskip("websocket", reason="no websocket-client here: pip install 'rankwise[dev]'")
pytestmark = pytest.mark.skipif(
    BROWSER is None and not os.environ.get("CI"), reason="no browser here: install Chromium (Debian's chromium)"
)
EVIL = "</script><img src=x onerror=\"document.title='owned'\">"


class Tab:
    """One tab, driven by the DevTools protocol."""

    def __init__(self, port):
        self._socket = websocket.create_connection(f"ws://127.0.0.1:{port}", timeout=120, suppress_origin=True)
        self._number, self._session, self.events = 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params, **session}))
        while (answer := json.loads(self._socket.recv())).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path):
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        self.wait("document.readyState == 'complete' && document.getElementById('theme') !== null")

    def ask(self, code):
        answer = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, code):
        check = f"new Promise(done => {{ const look = () => ({code}) ? done(true) : setTimeout(look, 20); look(); }})"
        assert self.ask(check)

    def mouse(self, kind, x, y):
        held = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **held)

    def click(self, selector):
        x, y, width, height = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x + width / 2, y + height / 2)

    def place(self, selector):
        found = f"document.querySelector({json.dumps(selector)})"
        self.ask(f"{found}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        return self.ask(
            f"(() => {{ const r = {found}.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; }})()"
        )

    def key(self, name, text=""):
        code = {"ArrowRight": 39, "Escape": 27, "+": 187}[name]
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name, text=text, windowsVirtualKeyCode=code)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name, windowsVirtualKeyCode=code)

    def size(self, width, *, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def troubles(self):
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded")
        requests = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        said = [e["params"] for e in self.events if e["method"] in kinds]
        return said, [url for url in requests if not url.endswith("report.html")]


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    home = tmp_path_factory.mktemp("browser")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0"]
    quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update"]
    assert BROWSER, "CI installs chromium before the tests"
    command = [BROWSER, *flags, *quiet, f"--user-data-dir={home}", "about:blank"]
    env = {**os.environ, "HOME": str(home)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env) as browser:
        try:
            address = next(line for line in browser.stderr if line.startswith("DevTools listening on"))
            tab = Tab(address.strip().rpartition("ws://127.0.0.1:")[2])
            yield tab
            tab._socket.close()
        finally:
            browser.terminate()
            browser.stderr.read()


def make(path, num_steps, *, evil=""):
    path.mkdir(parents=True)
    config = {"config": {f"name{evil}": evil}, "environment": {"1": {"host": evil, "world_size": 2, "time": 1.0}}}
    (path / "config.json").write_text(json.dumps(config))
    with (path / "metrics.jsonl").open("w") as file:
        for step in range(1, num_steps + 1):
            loss = 2 * math.exp(-3 * step / num_steps) + 0.01 * math.sin(step)
            line = {"step": step, "attempt": 1, "loss": loss, "samples_per_s": 100.0 + step % 7, f"m{evil}": step}
            file.write(json.dumps(line) + "\n")
    return path


CURVE = "document.querySelector('figure.chart svg').innerHTML"
READOUT = "document.querySelector('.readout').textContent"


def test_a_reader_clicks_through_it(tab, tmp_path):
    """Values under the pointer and by keys, log scale, smoothing over the raw line, zoom and back, dark and light."""
    run = make(tmp_path / "run", 10)
    write_report([run], run / "report.html")
    tab.size(1200)
    tab.open(run / "report.html")
    x, y, width, height = tab.place("figure.chart svg")
    tab.mouse("mouseMoved", x + width * 0.55, y + height / 2)
    assert tab.ask(READOUT).startswith("step ")
    before = tab.ask(CURVE)
    tab.click("#log")
    assert tab.ask("document.getElementById('log').getAttribute('aria-pressed')") == "true"
    assert tab.ask(CURVE) != before
    tab.click("#log")
    tab.ask("smooth.value = 80; smooth.dispatchEvent(new Event('input'))")
    assert tab.ask("document.querySelectorAll('figure.chart:first-child path.raw, path.smooth').length") >= 2
    assert tab.ask("document.querySelector('figure.chart path.raw').getAttribute('d').length") > 50
    x, y, width, height = tab.place("figure.chart svg")
    tab.mouse("mousePressed", x + width * 0.4, y + height / 2)
    tab.mouse("mouseMoved", x + width * 0.6, y + height / 2)
    tab.mouse("mouseReleased", x + width * 0.6, y + height / 2)
    assert tab.ask("!document.getElementById('unzoom').hidden && view.zoom[0] > 3 && view.zoom[1] < 8")
    tab.click("#unzoom")
    assert tab.ask("view.zoom") is None
    tab.ask("document.querySelector('figure.chart svg').focus()")
    tab.key("ArrowRight")
    assert "smoothed" in tab.ask(READOUT)
    tab.key("+", "+")
    assert tab.ask("view.zoom !== null")
    tab.key("Escape")
    assert tab.ask("view.zoom") is None
    colour = "getComputedStyle(document.body).backgroundColor"
    assert tab.ask(colour) == "rgb(255, 255, 255)"
    tab.click("#theme")
    assert tab.ask(colour) == "rgb(20, 23, 28)"
    assert tab.troubles() == ([], [])


def test_no_text_of_the_run_runs_and_nothing_is_loaded(tab, tmp_path):
    """An image with an error handler in names, values and the configuration stays text."""
    run = make(tmp_path / "run", 12, evil=EVIL)
    write_report([run], run / "report.html")
    tab.open(run / "report.html")
    assert "owned" not in tab.ask("document.title")
    assert tab.ask("document.images.length") == 0
    assert tab.ask("document.querySelectorAll('figcaption')[1].textContent") == f"m{EVIL}"
    tab.ask("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
    tab.wait("document.images[0].complete")
    assert tab.ask("document.title") != "1"  # were one to get in, the policy would stop it


@pytest.mark.parametrize("width", [360, 1400])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits(tab, tmp_path, width, dark):
    """20,000 steps, side by side with 10: no sideways scrolling of the page, text that can be read."""
    runs = [make(tmp_path / "a", 10), make(tmp_path / "b", 20_000)]
    page = runs[0] / "report.html"
    write_report(runs, page)
    tab.size(width, dark=dark)
    tab.open(page)
    assert tab.ask("document.documentElement.scrollWidth") <= width
    assert tab.ask("document.querySelectorAll('figure.chart path.raw').length") == 6
    assert tab.ask(_CONTRAST) >= 4.5
    assert tab.troubles() == ([], [])


_CONTRAST = """(() => {
  const light = (colour) => colour.match(/[0-9.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (el) => { const c = getComputedStyle(el).backgroundColor;
    return c !== "rgba(0, 0, 0, 0)" ? c : ground(el.parentElement); };
  const texts = document.querySelectorAll("p, td, th, a, li, dt, dd, h1, h2, button, .badge, figcaption");
  return Math.min(...[...texts].map((el) => {
    const [a, b] = [light(getComputedStyle(el).color), light(ground(el))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
})()"""
