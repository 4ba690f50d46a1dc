"""The page: what it says, that it is one file, and how it looks to a real browser."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import planted_faults as faults
import pytest

from andrea_export.graph import GraphOptions, export_graph
from andrea_export.layer_names import kind_of, tap_names
from andrea_export.report.candidates import CandidateSpec
from andrea_export.report.make import ReportOptions, make_report
from andrea_export.report.markdown import render_markdown
from andrea_model import AndreaConfig, open_checkpoint, random_checkpoint
from andrea_model.checkpoint import save_folder
from andrea_model.tokenizer import HarrisTokenizer

pytest.importorskip("matplotlib", reason="needs the extra `report`")
from andrea_export.report.page import render_html
from andrea_export.report.page.layer_axis import position

CONFIG = AndreaConfig(259, 24, 32, 2, 4)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# Tags without an end.
VOID = {"meta", "br", "img", "link", "hr", "wbr", "input"}


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    """An honest export, one with a fault, one that is not there; with hostile text in it."""
    place = tmp_path_factory.mktemp("page")
    HarrisTokenizer(["the ", "<script>"]).save(place / "tokenizer.json")
    save_folder(random_checkpoint("andrea-nano", 5, config=CONFIG), place / "ckpt")
    shutil.copy(place / "tokenizer.json", place / "ckpt")
    (place / "text.txt").write_text("the <script>alert(1)</script> &amp; 'the' \"the\" " * 9)
    checkpoint = open_checkpoint(place / "ckpt")
    folder = export_graph(checkpoint, place / "honest")
    export_graph(checkpoint, place / "half", GraphOptions(dtype="fp16"))
    faults.spoiled(folder, place / "spoiled", faults.attention_scale(1, 1.02).plant)
    specs = [CandidateSpec(str(place / name)) for name in ("honest", "half", "spoiled", "<b>gone")]
    options = ReportOptions(
        text=place / "text.txt", windows=2, tokens=20, bisect=True, command="andrea-export report"
    )
    return json.loads(json.dumps(make_report(checkpoint, specs, options).to_dict()))


@pytest.fixture(scope="module")
def page(values):
    return render_html(values)


class Elements(HTMLParser):
    """Every element with its attributes, and whether tags nest."""

    def __init__(self, text):
        super().__init__()
        self.found, self.stack = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, f"</{tag}> closes another element"

    def of(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def test_the_page_is_one_small_file_that_fetches_nothing(page):
    assert len(page.encode()) < 2e6
    elements = Elements(page)
    assert not elements.stack
    assert {tag for tag, _ in elements.found} & {"script", "link", "iframe", "object"} == set()
    targets = [
        value
        for _, attributes in elements.found
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href", "srcset", "action", "data") and value
    ]
    assert targets
    assert all(each.startswith(("#", "data:image/png;base64,")) for each in targets)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_the_first_thing_said_is_the_verdict(page, values):
    text = re.sub(r"<[^>]+>", "", page[page.index("<main>") :]).strip()
    assert values["verdict"]["status"] == "out of tolerance"
    assert text.startswith("✗1 of 4 candidates is out of tolerance.")
    assert "blocks.1.attn.context" in text[:600]


def test_text_from_outside_cannot_become_markup(page):
    assert "<script" not in page
    assert "<b>gone" not in page
    assert "&lt;b&gt;gone" in page
    assert "&lt;script&gt;" in page


def test_every_picture_has_a_title_and_words_and_a_role(page):
    pictures = re.findall(r"<svg[^>]*>.*?</svg>", page, re.DOTALL)
    # Perplexity; growth, KL and agreement of three candidates; four heatmaps.
    assert len(pictures) == 1 + 3 * 3 + 4
    for picture in pictures:
        assert 'role="img"' in picture
        assert re.search(r"<title>\w", picture)
        assert re.search(r"<desc>\w", picture)


def test_no_two_elements_have_the_same_id_and_every_link_has_a_target(page):
    elements = Elements(page)
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in elements.found:
        for name in ("href", "xlink:href", "aria-labelledby"):
            value = attributes.get(name, "")
            if name == "aria-labelledby" and value:
                assert value in ids
            if value.startswith("#"):
                assert value[1:] in ids
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_tables_have_header_cells_and_wide_ones_can_be_scrolled_by_keyboard(page):
    elements = Elements(page)
    assert all("scope" in attributes for attributes in elements.of("th"))
    scrolling = [each for each in elements.of("div") if each.get("class") == "scroll"]
    assert len(scrolling) >= len(elements.of("table")) - 1
    assert all(each["tabindex"] == "0" and each["aria-label"] for each in scrolling)
    assert elements.of("html")[0]["lang"] == "en"


def test_pictures_have_no_colour_of_their_own_but_the_heatmaps(page):
    """Two themes and print: every colour is a variable of the page."""
    for picture in re.findall(r"<svg[^>]*>.*?</svg>", page, re.DOTALL):
        without_data = re.sub(r"base64,[^\"]+", "", picture)
        assert "#0102" not in without_data
        colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", without_data))
        assert colours <= {"#ffffff"}, colours


def test_the_markdown_says_the_same(values):
    text = render_markdown(values)
    assert values["verdict"]["sentence"] in text
    for candidate in values["candidates"]:
        name = candidate["name"].replace("<", r"\<").replace(">", r"\>")
        assert f"## {name}" in text
    assert not re.search(r"(?<!\\)<", text)
    assert "`blocks.1.attn.context`" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.count("|") - line.count("\\|") >= 4 for line in rows)


def test_no_name_becomes_markup_or_breaks_a_table_in_markdown(values):
    hostile = "a|b`c`*d*[e](f)<script>\n| x |"
    spoiled = dict(values, candidates=[dict(values["candidates"][0], name=hostile)])
    lines = render_markdown(spoiled).splitlines()
    (row,) = (line for line in lines if "a\\|b" in line and line.startswith("|"))
    assert r"| a\|b\`c\`\*d\*\[e\](f)\<script\> \| x \| |" in row
    assert len(re.findall(r"(?<!\\)\|", row)) == 10


def test_a_name_with_dollars_is_no_formula(values):
    page = render_html(dict(values, candidates=[dict(values["candidates"][0], name="a$x^{$b")]))
    (picture,) = re.findall(r"<svg(?:(?!</svg>).)*<title>Perplexity.*?</svg>", page, re.DOTALL)
    assert re.search(r">a\$x\^\{\$b<", picture)


def test_letters_that_the_drawing_font_lacks_are_no_warning(values, recwarn):
    render_html(dict(values, candidates=[dict(values["candidates"][0], name="漢字")]))
    assert not recwarn.list


def test_candidates_of_one_folder_name_are_told_apart_by_their_place(values):
    one = values["candidates"][0]
    names = ["/x/a/model", "/y/a/model", "/x/b/model,dtype=fp16", "other"]
    page = render_html(dict(values, candidates=[dict(one, name=name) for name in names]))
    summary = page[: page.index("</table>")]
    assert re.findall(r'href="#candidate-\d">([^<]*)<', summary) == [
        "x/a/model", "y/a/model", "model,dtype=fp16", "other",
    ]  # fmt: skip


def test_a_page_of_very_many_candidates_stays_small_and_shows_what_failed(values):
    honest, half, spoiled, _ = values["candidates"]
    names = [f"candidate-{number}" for number in range(60)]
    many = [dict(half if n % 2 else honest, name=name) for n, name in enumerate(names)]
    many[57] = dict(spoiled, name=names[57])
    page = render_html(dict(values, candidates=many))
    assert len(page.encode()) <= 2e6
    assert not Elements(page).stack
    assert all(f">{name}<" in page for name in names)
    sections = page.split("<section ")[1:]
    assert "<svg" in sections[57]
    assert "Layer by layer" in sections[57]
    without = [section for section in sections[:60] if "<svg" not in section]
    assert 0 < len(without) < 59
    assert all("are in <code>report.json</code>" in section for section in without)
    assert all("Figures by data set" in section for section in sections[:60])


@pytest.mark.parametrize("norm_position", ["pre", "post"])
def test_a_place_between_two_sums_is_drawn_between_them(norm_position):
    order = tap_names(CONFIG.replace(norm_position=norm_position))
    sums = [name for name in order if kind_of(name) == "residual"]
    at = [position(name, order, sums) for name in order]
    assert at == sorted(at)
    assert [place for place, name in zip(at, order, strict=True) if name in sums] == [0, 1, 2, 3, 4]
    assert all(place % 1 == 0.5 for place, name in zip(at, order, strict=True) if name not in sums)


def test_random_weights_without_text_make_a_page_too(tmp_path):
    checkpoint = random_checkpoint("andrea-nano", 5, config=CONFIG)
    export_graph(checkpoint, tmp_path / "out")
    options = ReportOptions(windows=1, tokens=8, layers=False)
    report = make_report(checkpoint, [CandidateSpec(str(tmp_path / "out"))], options)
    page = render_html(json.loads(json.dumps(report.to_dict())))
    assert "random weights, not a trained model" in page
    assert "not seen" in page


# In the browser: how every picture has been laid out, and what the page asked for.
PROBE = """<script>
addEventListener('load', () => {
  const boxes = [...document.querySelectorAll('svg.chart')].map(svg => {
    const box = svg.getBoundingClientRect();
    const drawn = [...svg.querySelectorAll('path, image')].filter(
      each => each.getBoundingClientRect().width > 0);
    return [box.width, box.height, drawn.length];
  });
  const result = {
    boxes,
    errors: window.seenErrors,
    requests: performance.getEntriesByType('resource').map(each => each.name),
    verdict: document.getElementById('verdict').innerText,
    wide: document.documentElement.scrollWidth,
    ink: getComputedStyle(document.body).color,
    paper: getComputedStyle(document.body).backgroundColor,
  };
  document.title = 'probed';
  document.body.innerHTML = '';
  document.body.append(Object.assign(document.createElement('pre'),
    {id: 'probe', textContent: JSON.stringify(result)}));
});
</script>"""
EARLY = """<script>
window.seenErrors = [];
addEventListener('error', event => seenErrors.push(String(event.message)));
addEventListener('securitypolicyviolation', event => seenErrors.push(event.violatedDirective));
</script>"""


@pytest.fixture(scope="module")
def in_browser(page, tmp_path_factory):
    """Lays the page out in headless Chromium at a width, and gives what a script in it saw."""
    if CHROMIUM is None:
        pytest.skip("no chromium is installed (Debian's package of that name will do)")
    place = tmp_path_factory.mktemp("browser")
    # The page forbids scripts, and the probe is one.
    probed = re.sub(r"default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';", page)
    probed = probed.replace("<title>", EARLY + "<title>", 1).replace("</body>", PROBE + "</body>")
    (place / "page.html").write_text(probed, "utf-8")

    def run(width, *options):
        command = [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-dev-shm-usage",
            f"--user-data-dir={place / 'profile'}", f"--window-size={width},900",
            "--enable-logging=stderr", "--virtual-time-budget=10000", *options, "--dump-dom",
            (place / "page.html").as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
        assert found, f"chromium ended with {done.returncode}: {done.stderr[-2000:]}"
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        text = found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        return json.loads(text), console

    return run


@pytest.mark.parametrize("width", [1200, 500])
def test_in_a_browser_every_picture_is_drawn_and_nothing_is_fetched(in_browser, values, width):
    seen, console = in_browser(width)
    assert seen["errors"] == []
    assert console == []
    assert seen["requests"] == []
    assert len(seen["boxes"]) == 14
    for box_width, height, drawn in seen["boxes"]:
        assert box_width > 250
        assert height > 100
        assert drawn > 5
    assert values["verdict"]["sentence"] in seen["verdict"]
    assert seen["wide"] <= width, "the page itself must not scroll sideways"


def test_in_a_browser_the_dark_theme_turns_ink_and_paper_around(in_browser):
    light, _ = in_browser(1200)
    dark, _ = in_browser(1200, "--force-dark-mode", "--blink-settings=preferredColorScheme=0")

    def brightness(colour):
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    assert brightness(light["ink"]) < brightness(light["paper"])
    assert brightness(dark["ink"]) > brightness(dark["paper"])


def test_the_stylesheet_has_rules_for_phone_print_and_dark():
    import andrea_export.report.page as package

    css = (Path(package.__file__).parent / "page.css").read_text("utf-8")
    for rule in ("prefers-color-scheme: dark", "@media print", "max-width: 40rem"):
        assert rule in css
