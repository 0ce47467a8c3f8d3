"""The notebooks run; the first shows every stage, and its HTML stands alone: no network, no script error, readable in
light and dark.

They are stored executed: ``python -m tests.test_notebook`` stores what they show anew.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path

import jupytext
import nbformat
import pytest
from jinja2 import DictLoader
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbconvert import HTMLExporter

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))
NOTEBOOK, ON_MEMORY, ON_SIZES, ON_BACKWARD, ON_TRANSFORMS = NOTEBOOKS
STAGES = ("p", "p.facts", "p.joint", "p.partition", "p.kernels[0]", "p.schedule[0]", "p.sources[0]", "p.call")

# The lab template without what it loads from the network (require.js, MathJax, Mermaid): nothing the notebook shows
# needs it.
OFFLINE = """
{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
"""

# Adds what a reader's browser makes of the fragments to the page, as JSON: sizes of the drawings, and the least
# contrast (as WCAG defines it) between any text of a fragment and what is painted behind it.
MEASURE = r"""
<script>
addEventListener("load", () => {
  const parse = text => { const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number); return {r, g, b, a} }
  const over = (top, under) => ({r: top.r * top.a + under.r * (1 - top.a), g: top.g * top.a + under.g * (1 - top.a),
                                 b: top.b * top.a + under.b * (1 - top.a), a: 1})
  const luminance = c => [[c.r, .2126], [c.g, .7152], [c.b, .0722]].reduce((sum, [v, weight]) => {
    v /= 255
    return sum + weight * (v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
  }, 0)
  const behind = element => {
    const layers = []
    for (let e = element; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor))
    const canvas = matchMedia("(prefers-color-scheme: dark)").matches && getComputedStyle(document.documentElement)
      .colorScheme.includes("dark") ? {r: 18, g: 18, b: 18, a: 1} : {r: 255, g: 255, b: 255, a: 1}
    let colour = layers.reduceRight((under, top) => over(top, under), canvas)
    const box = element.closest("g")?.querySelector("rect")
    if (box) {
      const style = getComputedStyle(box)
      colour = over({...parse(style.fill), a: Number(style.fillOpacity)}, colour)
    }
    return colour
  }
  const contrast = element => {
    const style = getComputedStyle(element)
    const back = behind(element)
    const front = over(parse(element.closest("svg") ? style.fill : style.color), back)
    const [low, high] = [luminance(front), luminance(back)].sort((a, b) => a - b)
    return (high + .05) / (low + .05)
  }
  document.querySelectorAll("details").forEach(folded => folded.open = true)
  const texts = [...document.querySelectorAll(".funcgrad :is(p, pre, th, td, summary, text)")]
  const drawings = [...document.querySelectorAll("svg.funcgrad-graph")].map(svg => {
    const {width, height} = svg.getBoundingClientRect()
    return {width, height, shown: svg.checkVisibility(), boxes: svg.querySelectorAll("rect").length}
  })
  const least = Math.min(...texts.map(contrast))
  document.body.dataset.measured = JSON.stringify({drawings, texts: texts.length, contrast: least})
})
</script>
"""


class ThisInterpreter(AsyncKernelManager):
    """Starts the kernel with the Python that runs the tests, whatever kernels the machine has installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        return KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python"
        )


def execute(path):
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": path.parent}}
    client = NotebookClient(
        notebook, timeout=300, kernel_manager_class=ThisInterpreter, resources=resources, record_timing=False
    )
    return client.execute()


def store(path):
    """Write a notebook with its outputs, but for what is on stderr: there compilations say that they take long."""
    notebook = execute(path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    notebook.metadata.pop("language_info", None)  # says which Python it was
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def executed():
    return execute(NOTEBOOK)


def shown(notebook, sources):
    """Cell source → the HTML it showed, for the cells that show a stage."""
    return {
        cell.source.splitlines()[-1]: "".join(
            o.data.get("text/html", "") for o in cell.outputs if o.output_type == "execute_result"
        )
        for cell in notebook.cells
        if cell.source and cell.source.splitlines()[-1] in sources
    }


def export(notebook, theme):
    loader = DictLoader({"offline.html.j2": OFFLINE})
    return HTMLExporter(template_file="offline.html.j2", extra_loaders=[loader], theme=theme).from_notebook_node(
        notebook
    )[0]


@pytest.fixture(scope="module")
def stages(executed):
    return shown(executed, STAGES)


class Resources(HTMLParser):
    """Collects every address a page asks the browser to load."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found += [
            value for name, value in attributes if value and (name == "src" or (tag == "link" and name == "href"))
        ]


# ── the notebook ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_pair_is_in_sync(path):
    script, notebook = (jupytext.read(path.with_suffix(s)) for s in (".py", ".ipynb"))
    assert [(c.cell_type, c.source) for c in script.cells] == [(c.cell_type, c.source) for c in notebook.cells]
    assert notebook.metadata.jupytext.formats == "ipynb,py:percent"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_stored_notebook_is_executed(path):
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
    outputs = [o for c in cells for o in c.outputs]
    assert {o.output_type for o in outputs} <= {"execute_result", "stream"}
    assert sum("text/html" in o.get("data", {}) for o in outputs) >= 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_stored_notebook_says_nothing_of_the_machine(path):
    text = path.read_text()
    folders = [str(Path.home()), sys.prefix, sys.base_prefix, str(path.parent.parent), tempfile.gettempdir()]
    assert [folder for folder in folders if re.search(rf"{re.escape(folder)}(?=[/\\s\"'<])", text)] == []
    assert not re.search(r"(?:^|[\s\"'(>=])/(?:home|root|tmp|usr|var|Users|private|work)/", text)
    assert "stderr" not in text and '"execution":' not in text


def test_what_is_stored_is_what_the_notebook_shows_now(stages):
    """What does not hang on the version of torch."""
    stored = shown(nbformat.read(NOTEBOOK, as_version=4), STAGES)
    assert list(stored) == list(STAGES)
    assert stored["p.facts"] == stages["p.facts"]


def test_every_stage_shows_itself(stages):
    assert list(stages) == list(STAGES)
    for source, html in stages.items():
        assert '<div class="funcgrad">' in html, source
    assert '<svg class="funcgrad-graph"' in stages["p.joint"]


def test_something_is_saved_for_backward(executed):
    (saved,) = shown(executed, ("saved",)).values()
    assert re.search(r"saved\(\w+\)</td><td>[1-9]\d* B</td>", saved)


@pytest.mark.long
def test_the_notebook_on_memory_draws_it_over_time():
    notebook = execute(ON_MEMORY)
    drawn = shown(notebook, ("saved", "use", "free", "bounded"))
    assert list(drawn) == ["saved", "use", "free", "bounded"]
    assert all('<div class="funcgrad">' in html for html in drawn.values())
    assert "budget" in drawn["bounded"] and "budget" not in drawn["free"]
    printed = "".join(
        o.text for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs if o.get("name") == "stdout"
    )
    assert printed.count("of forward is computed again") >= 2


def test_the_notebook_on_sizes_shows_symbols_and_guards():
    notebook = execute(ON_SIZES)
    printed = "".join(
        o.text for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs if o.get("name") == "stdout"
    )
    assert "misses=2" in printed and "misses=3" not in printed
    assert "int64_t size_s" in printed  # a kernel's parameter
    assert "no longer holds" in printed
    (call,) = shown(notebook, ("grad.program(torch.randn(5)).call",)).values()
    assert "shape[0]" in call and "&lt;= 10" in call


def test_the_notebook_on_backward_passes_shows_what_was_captured():
    found = shown(execute(ON_BACKWARD), ("region.captures[0]", "region.captures[0].programs[-1].graphs[0]"))
    page = found["region.captures[0]"]
    assert "clipped (" in page and "descend (" in page and "accumulate_grad" in page and "<svg" in page
    assert "inputs[1].shape[0]" in found["region.captures[0].programs[-1].graphs[0]"]


def test_the_stages_are_small(stages):
    assert sum(len(html.encode()) for html in stages.values()) < 200_000


def test_where_a_call_comes_from_is_readable_in_a_notebook(stages):
    places = re.findall(r"<td>([^<]*) in loss</td>", stages["p.joint"])
    assert places and all(len(place) < 40 for place in places), places[:1]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_loads_nothing(executed, theme):
    page = export(executed, theme)
    assert [address for address in Resources(page).found if not address.startswith("data:")] == []
    assert "<script" not in page
    assert not re.search(r"@import|url\(['\"]?(?:https?:)?//", page)


# ── in a browser ─────────────────────────────────────────────────────────────────────────────────────────────────


def browser(page: Path, profile: Path, *flags: str) -> subprocess.CompletedProcess:
    """Open a page in headless Chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("needs Chromium: neither chromium nor chromium-browser is on the PATH")
    quiet = (
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
    )
    log = ("--enable-logging=stderr", "--v=0", "--virtual-time-budget=5000", f"--user-data-dir={profile}")
    command = [program, "--headless", "--no-sandbox", *quiet, "--disable-sync", *log, *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def console_errors(log: str) -> list[str]:
    """Lines of Chromium's log in which the page's console complains."""
    lines = [line for line in log.splitlines() if "CONSOLE" in line]
    return [line for line in lines if re.search(r"Uncaught|\berror\b|Failed to load|Refused to", line, re.IGNORECASE)]


def measured(executed, folder: Path, theme: str, *flags: str) -> dict:
    page = folder / f"{theme}.html"
    page.write_text(export(executed, theme).replace("</body>", MEASURE + "</body>", 1))
    run = browser(page, folder / "profile", "--dump-dom", *flags)
    assert console_errors(run.stderr) == []

    class Body(HTMLParser):
        found = None

        def handle_starttag(self, tag, attributes):
            Body.found = Body.found or dict(attributes).get("data-measured")

    Body().feed(run.stdout)
    assert Body.found, f"the page did not measure itself:\n{run.stderr}"
    return json.loads(Body.found)


@pytest.mark.parametrize(("theme", "flags"), [("light", ()), ("dark", ()), ("dark", ("--force-dark-mode",))])
def test_the_stages_are_drawn_and_readable(executed, tmp_path, theme, flags):
    seen = measured(executed, tmp_path, theme, *flags)
    joint, *halves = seen["drawings"]
    assert joint["boxes"] > 20 and joint["width"] > 200 and joint["height"] > 200
    assert all(drawing["shown"] and drawing["width"] > 0 and drawing["height"] > 0 for drawing in (joint, *halves))
    assert seen["texts"] > 100
    assert seen["contrast"] > 4.5  # WCAG 2, level AA


def test_a_script_error_would_be_seen(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<body><script>nonsense()</script></body>")
    assert console_errors(browser(page, tmp_path / "profile", "--dump-dom").stderr)


def test_the_page_can_be_photographed(executed, tmp_path):
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text(export(executed, "light"))
    browser(page, tmp_path / "profile", f"--screenshot={picture}", "--window-size=1200,2400")
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 20_000


@pytest.mark.long
def test_the_notebook_on_transforms_compares_with_torch_func():
    notebook = execute(ON_TRANSFORMS)
    outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
    assert "".join(o.text for o in outputs if o.get("name") == "stdout").count("torch.func ") == 6
    texts = [o.data["text/plain"] for o in outputs if o.output_type == "execute_result"]
    assert any("misses=1" in text for text in texts) and sum("schedule" in text for text in texts) == 2


if __name__ == "__main__":
    for notebook in NOTEBOOKS:
        store(notebook)
