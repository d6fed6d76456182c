"""The pages in a real Chromium: live, dark, narrow, by keyboard, accessible, and from this site alone.

`make screens` fetches what is missing here. With ``PICTURES=FOLDER`` they write the pictures of the docs.
"""

import base64
import io
import json
import os
import platform
import queue
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from tests.directories import QUICK_FILE, short_directory
from tests.zeus_stream.conftest import Cli
from tests.zeus_stream.screens.web.conftest import TOKEN
from tests.zeus_stream.views.scenes import SCENES, Answer, Scene, stored
from zeus_stream.protocol.snapshots import Snapshot
from zeus_stream.screens.web.now_feed import NowFeed
from zeus_stream.screens.web.routes.site import Site
from zeus_stream.screens.web.server import Listening, serve
from zeus_stream.screens.web.source import QueryRows as Page
from zeus_stream.screens.web.source import Source

ROOT = Path(__file__).parents[4]
SCREENS = ROOT / ".screens"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PATIENCE_S = 90
SCRIPT = """
import sys, time, pathlib, zeus_stream
from zeus_stream.simulated_gpu.accelerator import attach
stop = pathlib.Path(sys.argv[1])
with attach("imagenet") as gpu:
    for epoch in zeus_stream.epochs(8):
        for _ in zeus_stream.steps(range(45)):
            gpu.run(float(sys.argv[2]))
        with zeus_stream.window("validation"):
            gpu.run(0.3)
        while epoch == 6 and not stop.exists():
            time.sleep(0.05)
"""
SEARCH = ("--search", "exhaustive", "--stride-w", "50", *QUICK_FILE, "--profile-steps", "16")


PROGRAMS = {
    name: shutil.which(name) or shutil.which(str(SCREENS / "usr" / fetched / name))
    for name, fetched in (("chromium", "lib/chromium"), ("chromedriver", "bin"))
}
LIBRARY = SCREENS / "usr" / "lib" / f"{platform.machine()}-linux-gnu"
LIBRARIES = {**os.environ, "LD_LIBRARY_PATH": f"{LIBRARY}:{LIBRARY}/pulseaudio"}
"""The environment in which fetched programs find their libraries."""
MISSING = [name for name, path in PROGRAMS.items() if path is None]
MISSING += [] if (SCREENS / "axe.min.js").exists() else ["axe.min.js"]
pytestmark = [
    pytest.mark.sweep,
    pytest.mark.skipif(bool(MISSING), reason=f"missing: {', '.join(MISSING)}. `make screens` fetches it"),
]


@dataclass
class Browser:
    """A Chromium, and the site that it looks at."""

    driver: Any
    site: str = ""

    def look(self, path: str, *, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        """Open a page at a size and a colour scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get(self.site + path)

    def until(self, condition: Callable[[], object]) -> None:
        WebDriverWait(self.driver, PATIENCE_S, 0.1).until(lambda _: condition())

    def script(self, text: str) -> Any:
        return self.driver.execute_script(text)

    def text(self, selector: str) -> str:
        return str(self.script(f"return document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    def drawn(self) -> str:
        """Return the number of the power chart on screen; empty before the first."""
        return str(self.script("return document.getElementById('plot')?.dataset.drawn ?? ''"))

    def complaints(self) -> list[str]:
        """Return what the browser wrote to its console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that the page asked for."""
        entries = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [entry["params"] for entry in entries if entry["method"] == "Network.requestWillBeSent"]
        return [str(each["request"]["url"]) for each in sent]

    def picture(self, name: str, most_height: int = 2400) -> None:
        """Write a picture of the whole page for the docs, if they are wanted."""
        if not (folder := os.environ.get("PICTURES")):
            return
        height = min(int(self.script("return document.documentElement.scrollHeight")), most_height)
        width = int(self.script("return innerWidth"))
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"format": "png", "clip": clip, "captureBeyondViewport": True}
        )
        from PIL import Image

        with Image.open(io.BytesIO(base64.b64decode(shot["data"]))) as image:
            (ROOT / folder).mkdir(parents=True, exist_ok=True)
            image.convert("RGB").quantize(256, kmeans=2).save(ROOT / folder / f"{name}.png", optimize=True)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    options = Options()
    options.binary_location = PROGRAMS["chromium"] or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(PROGRAMS["chromedriver"], env=LIBRARIES))
    driver.set_page_load_timeout(PATIENCE_S)
    yield Browser(driver)
    driver.quit()


@dataclass
class Training:
    """A training under ``run --web`` that waits in its last epoch."""

    zeus: Cli
    process: "subprocess.Popen[str]"
    address: str

    def finish(self) -> str:
        """Let it end; return what `run` said."""
        (self.zeus.directory / "stop").touch()
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return said


@contextmanager
def training(directory: Path) -> Iterator[Training]:
    zeus = Cli(directory)
    script = directory / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    step_s = "0.15" if "PICTURES" in os.environ else "0.05"  # a picture is of steps that others hardly delay
    command = (sys.executable, str(script), str(directory / "stop"), step_s)
    process = zeus.start("run", "--web", "--device", "simulated:v100x2", *SEARCH, "--", *command)
    try:
        assert process.stderr is not None
        address = next(line for line in process.stderr if "watch it at" in line).split()[-1]
        yield Training(zeus, process, address)
    finally:
        process.terminate()
        if process.stderr is not None and not process.stderr.closed:
            process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def archive(browser: Browser) -> Iterator[Path]:
    """The overview is seen live during a training; its archive is left to the other tests."""
    with short_directory() as directory:
        with training(directory) as run:
            _see_live(browser, run)
            browser.driver.get("about:blank")  # or it would go on asking a server that has ended
            assert browser.complaints() == []
            browser.requests()
            said = run.finish()
            assert "chosen" in said, said
        yield directory / "energy.duckdb"


def _see_live(browser: Browser, run: Training) -> None:
    """The overview shows GPUs and the run, and changes by itself."""
    browser.site = run.address.partition("/?")[0]
    browser.look("/?" + run.address.partition("/?")[2])
    browser.until(lambda: browser.text("#state") == "live")
    assert "token" not in browser.driver.current_url
    browser.until(lambda: len(browser.driver.find_elements(By.CSS_SELECTOR, "#now a.tile")) == 2)
    steps = "#now table tbody td:nth-child(5)"
    browser.until(lambda: browser.text(steps).isdigit())
    first = browser.text(steps)
    browser.driver.find_element(By.CSS_SELECTOR, "#now a.tile").send_keys("")  # has the focus
    browser.until(lambda: browser.text(steps) != first)
    assert browser.script("return document.activeElement.className") == "tile", "updates keep the focus"
    browser.until(lambda: "chosen" in browser.text("#now table"))
    _check(browser)
    browser.until(lambda: browser.text("#hour table a"))
    link = browser.driver.find_element(By.CSS_SELECTOR, "#now table a").get_attribute("href")
    _see_open_run(browser, "/runs/" + str(link).rpartition("/")[2])
    browser.look("/")
    browser.until(lambda: browser.text("#state") == "live")
    browser.picture("web-overview")


def _see_open_run(browser: Browser, path: str) -> None:
    """The page of an open run goes on by itself; the part that is zoomed into is in its address."""
    browser.look(path)
    browser.until(lambda: browser.text("#state") == "live")
    browser.until(browser.drawn)
    first = browser.drawn()
    browser.until(lambda: browser.drawn() != first)
    assert "energy so far" in browser.text("#now")
    _check(browser)
    browser.driver.find_element(By.ID, "plot").send_keys("+")
    browser.until(lambda: "#" in browser.driver.current_url)
    zoomed = browser.driver.current_url.partition("#")[2]
    browser.look(f"{path}#{zoomed}")
    browser.until(browser.drawn)
    assert browser.driver.current_url.endswith(zoomed)
    assert browser.complaints() == []


def _check(browser: Browser) -> None:
    """The page is accessible, silent, from one host, and fits its width."""
    axe = (SCREENS / "axe.min.js").read_text(encoding="utf-8")
    browser.script(axe)
    found = browser.driver.execute_async_script(
        "const done = arguments[0]; const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'];"
        "axe.run({runOnly: tags}).then((found) => done(found.violations), (wrong) => done(String(wrong)));"
    )
    assert [(each["id"], each["nodes"][0]["html"]) for each in found] == []
    assert browser.complaints() == []
    assert {url.split("/")[2] for url in browser.requests() if url.startswith("http")} <= {
        browser.site.split("/")[2]
    }
    width = browser.script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1], "no sideways scrolling"


@pytest.fixture(scope="module")
def page(browser: Browser, archive: Path) -> Iterator[Browser]:
    """The archive of the training as a page of a file."""
    with short_directory() as directory:
        process = Cli(directory).start("web", "--archive", str(archive), "--listen", "127.0.0.1:0")
        try:
            assert process.stderr is not None
            address = process.stderr.readline().split()[-1]
            browser.site = address.partition("/?")[0]
            browser.look("/?" + address.partition("/?")[2])
            yield browser
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE_S)


def run_path(page: Browser) -> str:
    page.look("/")
    page.until(lambda: page.driver.find_elements(By.CSS_SELECTOR, "#runs tbody a"))
    link = page.driver.find_element(By.CSS_SELECTOR, "#runs tbody a").get_attribute("href")
    return "/runs/" + str(link).rpartition("/")[2]


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("web-run", 1200, "light"), ("web-run-dark", 1200, "dark"), ("web-run-narrow", 360, "light")],
)
def test_the_run_page_is_whole_at_any_width_and_in_the_dark(
    page: Browser, name: str, width: int, scheme: str
) -> None:
    page.look(run_path(page), width=width, scheme=scheme)
    page.until(page.drawn)
    page.until(lambda: "from the energy counter" in page.text("#power-text"))
    for panel in ("result", "power", "limits", "epochs", "waste", "parts", "commands"):
        assert page.driver.find_elements(By.ID, panel), panel
    assert re.search(r" saves |^Kept ", page.text(".headline")), "a busy host may delay steps at lower limits"
    _check(page)
    widths = page.script(
        "const e = document.querySelector('#waste .scroll'); return [e.scrollWidth, e.clientWidth]"
    )
    assert widths[0] <= widths[1], "a cure is cut off"
    page.picture(name, 4000 if width < 400 else 1500)


def test_the_power_chart_is_zoomed_by_keys_and_asks_again(page: Browser) -> None:
    page.look(run_path(page))
    page.until(page.drawn)
    plot = page.driver.find_element(By.ID, "plot")
    before, whole = page.drawn(), page.text("#power-text")
    plot.send_keys("+")
    page.until(lambda: page.drawn() != before)
    assert page.text("#power-text") != whole
    before = page.drawn()
    plot.send_keys(Keys.ARROW_RIGHT)
    page.until(lambda: page.drawn() != before)
    before = page.drawn()
    plot.send_keys("0")
    page.until(lambda: page.drawn() != before)
    assert page.text("#power-text") == whole
    assert page.complaints() == []


def test_the_sql_box_has_an_address_to_share_and_downloads(page: Browser) -> None:
    page.look("/sql")
    box = page.driver.find_element(By.ID, "query")
    box.send_keys("SELECT epoch, energy_j FROM epochs ORDER BY epoch")
    box.send_keys(Keys.CONTROL, Keys.ENTER)
    page.until(lambda: len(page.driver.find_elements(By.CSS_SELECTOR, "#answer tbody tr")) == 8)
    address = page.driver.current_url
    assert "sql=SELECT" in address
    page.look("/")
    page.driver.get(address)
    page.until(lambda: len(page.driver.find_elements(By.CSS_SELECTOR, "#answer tbody tr")) == 8)
    link = page.driver.find_element(By.CSS_SELECTOR, "#answer a[download='answer.csv']").get_attribute("href")
    text = page.driver.execute_async_script(
        "const done = arguments[1]; fetch(arguments[0]).then((answer) => answer.text()).then(done);", link
    )
    assert len(text.strip().splitlines()) == 9
    _check(page)


@pytest.mark.parametrize("path", ["/", "/jobs", "/waste", "/sql?sql=FROM+trials"])
def test_every_other_page_is_accessible_and_fits_a_phone(page: Browser, path: str) -> None:
    for width, scheme in ((360, "dark"), (1200, "light")):
        page.look(path, width=width, scheme=scheme)
        page.until(lambda: page.driver.find_elements(By.CSS_SELECTOR, "main .panel"))
        _check(page)


@contextmanager
def served(scene: Scene, answer: Answer) -> Iterator[str]:
    """Serve the pages of a scene, live, in a thread. Yield the address with the token."""
    addresses: queue.Queue[str] = queue.Queue()

    async def look() -> Snapshot:
        return scene.now

    async def serve_until(ended: anyio.Event) -> None:
        site = Site(source=Source(lambda sql, *_: Page(answer(sql), truncated=False)), feed=NowFeed(look))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve, site, Listening(address="127.0.0.1:0", token=TOKEN), addresses.put)
            await ended.wait()
            tasks.cancel_scope.cancel()

    with start_blocking_portal() as portal:
        ended = portal.call(anyio.Event)
        serving = portal.start_task_soon(serve_until, ended)
        try:
            yield addresses.get(timeout=PATIENCE_S)
        finally:
            portal.call(ended.set)
            serving.result(PATIENCE_S)


@pytest.mark.parametrize("name", ["a pipeline", "no GPU", "64 GPUs", "the collector is dead"])
def test_each_kind_of_page_is_silent_under_its_own_policy(
    browser: Browser, name: str, tmp_path: Path
) -> None:
    scene = SCENES[name]()
    paths = ["/", "/runs/run", "/jobs/job", *[f"/gpus/{gpu.gpu}" for gpu in scene.now.gpus[:1]]]
    with stored(scene, tmp_path / "energy.duckdb") as answer, served(scene, answer) as address:
        browser.site, _, token = address.partition("/?")
        browser.look(f"/?{token}")
        for path in paths:
            for width in (1200, 360):
                browser.look(path, width=width)
                browser.until(lambda: browser.driver.find_elements(By.CSS_SELECTOR, "main .panel"))
                browser.until(lambda: browser.text("#power") == "" or browser.drawn())
                _check(browser)
        browser.driver.get("about:blank")


def test_eight_windows_of_one_browser_are_live(browser: Browser, tmp_path: Path) -> None:
    scene = SCENES["open, a limit chosen"]()
    first = browser.driver.current_window_handle
    with stored(scene, tmp_path / "energy.duckdb") as answer, served(scene, answer) as address:
        browser.site, _, token = address.partition("/?")
        browser.look(f"/?{token}")
        for _ in range(7):
            browser.driver.switch_to.new_window("window")
            browser.driver.get(f"{browser.site}/")
        for window in browser.driver.window_handles:
            browser.driver.switch_to.window(window)
            browser.until(lambda: browser.text("#state") == "live")
            assert browser.complaints() == []
        for window in browser.driver.window_handles:
            browser.driver.switch_to.window(window)
            if window == first:
                browser.driver.get("about:blank")
            else:
                browser.driver.close()
        browser.driver.switch_to.window(first)


def test_a_report_is_readable_as_a_file(page: Browser, archive: Path, tmp_path: Path) -> None:
    html = tmp_path / "report.html"
    done = Cli(tmp_path)("report", "--archive", str(archive), "--html", str(html))
    assert done.returncode == 0, done.stderr
    site, page.site = page.site, f"file://{html}"
    try:
        page.look("", width=1000)
        assert len(page.driver.find_elements(By.CSS_SELECTOR, "figure svg[role=img]")) == 4
        printed = page.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
        assert len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed))) == 2, "pages of A4"
        page.picture("web-report", 1500)
        page.requests()
        assert page.complaints() == []
    finally:
        page.site = site
