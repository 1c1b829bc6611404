"""Class tables: every form gives the same classes, and what can be read in two ways is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations.class_tables import read_class_table
from halofeed.prep.annotations.labels import from_table, read_table

NAMES = {0: "background", 1: "liver", 2: "tumor"}
COLORS = {0x000000: 0, 0xDD8265: 1, 0xB96653: 2}

TABLES = {
    "CVAT's labelmap.txt": (
        "labelmap.txt",
        "# label:color_rgb:parts:actions\nbackground:0,0,0::\nliver:221,130,101::\ntumor:185,102,83::\n",
    ),
    "the same, sorted by name": (
        "labelmap.txt",
        "liver:221,130,101::\nbackground:0,0,0::\ntumor:185,102,83::\n",
    ),
    "a color table of 3D Slicer": (
        "a.ctbl",
        "# Color table file a.ctbl\n# 3 values\n0 background 0 0 0 0\n1 liver 221 130 101 255\n"
        "2 tumor 185 102 83 255\n",
    ),
    "the same of Slicer 5": (
        "a.csv",
        "LabelValue,Name,Color_R,Color_G,Color_B,Color_A\n0,background,0,0,0,0\n1,liver,221,130,101,255\n"
        "2,tumor,185,102,83,255\n",
    ),
    "FreeSurfer's table": (
        "lut.txt",
        "#$Id: one\n#No. Label Name:      R   G   B   A\n\n0   background  0 0 0 0\n1   liver 221 130 101 0\n"
        "2   tumor  185 102 83  0\n",
    ),
    "labels of ITK-SNAP": (
        "a.label",
        "################\n# IDX   -R-  -G-  -B-  -A--  VIS MSH  LABEL\n    0     0    0    0        0  0  0    "
        '"background"\n    1   221  130  101        1  1  1    "liver"\n'
        '    2   185  102   83      0.5  1  1    "tumor"\n',
    ),
    "class_dict.csv": (
        "class_dict.csv",
        "name,r,g,b\nbackground,0,0,0\nliver,221,130,101\ntumor,185,102,83\n",
    ),
    "dseg.tsv of BIDS": (
        "dseg.tsv",
        "index\tname\tabbreviation\tcolor\n0\tbackground\tBG\t#000000\n1\tliver\tL\t#dd8265\n2\ttumor\tT\t#b96653\n",
    ),
    "colors before names": ("c.txt", "0 0 0 background\n221 130 101 liver\n185 102 83 tumor\n"),
    "semicolons": ("c.csv", "id;name;color\n0;background;#000000\n1;liver;#DD8265\n2;tumor;#B96653\n"),
    "categories in JSON": (
        "c.json",
        '{"categories": [{"id": 0, "name": "background", "color": [0, 0, 0]}, {"id": 1, "name": "liver", "color": '
        '[221, 130, 101]}, {"id": 2, "name": "tumor", "color": [185, 102, 83]}]}',
    ),
    "Supervisely's meta.json": (
        "meta.json",
        '{"classes": [{"title": "background", "shape": "bitmap", "color": "#000000"}, {"title": "liver", "shape": '
        '"bitmap", "color": "#DD8265"}, {"title": "tumor", "shape": "bitmap", "color": "#B96653"}], "tags": []}',
    ),
    "an ontology of Labelbox": (
        "o.json",
        '{"tools": [{"tool": "raster-segmentation", "name": "background", "color": "#000000"}, {"tool": '
        '"raster-segmentation", "name": "liver", "color": "#dd8265"}, {"tool": "raster-segmentation", "name": "tumor", '
        '"color": "#b96653"}], "classifications": []}',
    ),
    "a dict of colors": (
        "c.json",
        '{"background": [0, 0, 0], "liver": [221, 130, 101], "tumor": [185, 102, 83]}',
    ),
    "a dict by colors, as of A2D2": (
        "c.json",
        '{"#000000": "background", "#dd8265": "liver", "#b96653": "tumor"}',
    ),
}
WITHOUT_COLORS = {
    "a list": ("c.txt", "background\nliver\ntumor\n"),
    "a list below a comment": ("c.txt", "# classes of the set\nbackground\nliver\ntumor\n"),
    "numbers and names": ("c.txt", "0: background\n1: liver\n2: tumor\n"),
    "names and numbers": ("c.txt", "background=0\nliver=1\ntumor=2\n"),
    "Roboflow's _classes.csv": ("_classes.csv", "Pixel Value, Class\n0, background\n1, liver\n2, tumor\n"),
    "names by value": ("c.json", '{"0": "background", "1": "liver", "2": "tumor"}'),
    "values by name": ("c.json", '{"background": 0, "liver": 1, "tumor": 2}'),
    "dataset.json": (
        "d.json",
        '{"channel_names": {"0": "CT"}, "labels": {"background": 0, "liver": 1, "tumor": 2}, "numTraining": 2}',
    ),
    "features of Hugging Face": (
        "f.json",
        '{"features": {"image": {"_type": "Image"}, "label": {"names": ["background", "liver", "tumor"], "_type": '
        '"ClassLabel"}}, "splits": {"train": {"name": "train", "num_bytes": 3}}}',
    ),
    "config.json of a model": (
        "c.json",
        '{"id2label": {"0": "background", "1": "liver", "2": "tumor"}, "label2id": {"background": 0, "liver": 1, '
        '"tumor": 2}}',
    ),
    "data.yaml": ("data.yaml", "path: .\nnames:\n  0: background\n  1: liver\n  2: tumor\n"),
    "an atlas of labels of FSL": (
        "a.xml",
        '<atlas><header><type>Label</type></header><data><label index="0">background</label><label index="1">liver'
        '</label><label index="2">tumor</label></data></atlas>',
    ),
    "pbtxt": (
        "c.pbtxt",
        "item { id: 0 name: 'background' } item { id: 1 name: 'liver' } item { id: 2 name: 'tumor' }",
    ),
}


@pytest.mark.parametrize("form", TABLES)
def test_a_table_with_colors_gives_names_and_colors_by_value(form: str) -> None:
    name, text = TABLES[form]
    table = read_table(name, text.encode())
    assert dict(sorted(table.names.items())) == NAMES and table.colors == COLORS and not table.ignored


@pytest.mark.parametrize("form", WITHOUT_COLORS)
def test_a_table_without_colors_gives_names_by_value(form: str) -> None:
    name, text = WITHOUT_COLORS[form]
    table = read_table(name, text.encode())
    assert table.names == NAMES and not table.colors and table.background == 0


@pytest.mark.parametrize(
    ("name", "text", "ignored", "names"),
    [
        ("labels.txt", "__ignore__\n_background_\ncat\n", {-1: "__ignore__"}, {0: "_background_", 1: "cat"}),
        ("l.txt", "-1 void\n0 background\n1 cat\n", {-1: "void"}, {0: "background", 1: "cat"}),
        ("l.json", '{"background": 0, "cat": 1, "ignore": 2}', {2: "ignore"}, {0: "background", 1: "cat"}),
        ("l.csv", "id,name\n1,cat\n255,void\n", {255: "void"}, {1: "cat"}),
        ("l.csv", "id,name\n1,cat\n11,void\n", {}, {1: "cat", 11: "void"}),
    ],
)
def test_ignored_values_are_known_by_their_sign_or_name(name, text, ignored, names) -> None:
    table = read_table(name, text.encode())
    assert table.ignored == ignored
    assert {value: one for value, one in table.names.items() if value not in ignored} == names
    assert table.place(1).startswith(name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# exported\nnodule\ncyst\n", ["t.txt:1", "'# exported' may be a comment or a class", "delete"]),
        ("hat 1\ncoat 2\n", ["may be a name, or a name and its value", ".json"]),
        ("cat 10 20 30 255\ndog 40 50 60 255\n", ["a value and a color, or a color and its alpha"]),
        ("name\ncat\ndog\n", ["t.txt:1", "title of the column"]),
        ("cat  # pet\ndog  # pet\n", ["t.txt:1", "a name and a comment", "delete '# pet'"]),
        ("0 cat\n1 dog // pet\n", ["t.txt:2", "delete '// pet'"]),
        ("[labels]\ncat\ndog\n", ["t.txt:1", "'[labels]' may be a comment or a class"]),
        ("- cat\n- dog\n", ["'-' is in each line", ".json"]),
        ("0 - cat\n1 - dog\n", ["'-' is in each line", ".json"]),
        ("1) cat\n2) dog\n", ["'2)' is in each line", ".json"]),
        ("cat,\ndog,\n", ["',' is in each line", ".json"]),
        ("cat, dog\n", ["',' is in each line", ".json"]),
        ("name,group\ncat,pet\ndog,pet\n", ["',' is in each line", ".json"]),
        ("names:\n- cat\n- dog\n", ["'-' is in each line", ".json"]),
        ("| id | name |\n| 1 | cat |\n", ["'|' is in each line", ".json"]),
        ("class_name\ncat\ndog\n", ["t.txt:1", "title of the column"]),
        ("id,name\n1,cat\n1,dog\n", ["t.txt:2", "value 1 has several names"]),
        ("1 cat\n2 dog\nbird\n", ["t.txt:3", "'bird'", "the same columns"]),
        ("1,5,cat\n2,7,dog\n", ["values"]),
        ("1,felis,cat\n2,canis,dog\n", ["names"]),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused_with_a_way(text: str, words: list[str]) -> None:
    with pytest.raises(AnnotationsError) as caught:
        read_class_table("t.txt", text)
    for word in [*words, "t.txt"]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "names", "colors"),
    [
        ("tench, Tinca tinca\nshark\n", {0: "tench, Tinca tinca", 1: "shark"}, {}),
        ("left-kidney\nright-kidney\n", {0: "left-kidney", 1: "right-kidney"}, {}),
        ("kidney (left)\nkidney (right)\n", {0: "kidney (left)", 1: "kidney (right)"}, {}),
        ("T1\nvertebra 2\n", {0: "T1", 1: "vertebra 2"}, {}),
        ('"cat"\n"dog"\n', {0: "cat", 1: "dog"}, {}),
        ("['cat', 'dog']", {0: "cat", 1: "dog"}, {}),
        ("{1: 'cat', 2: 'dog'}", {1: "cat", 2: "dog"}, {}),
        ("[labels]\n1=cat\n2=dog\n", {1: "cat", 2: "dog"}, {}),
        ("#000000 none\n#ff0000 cat\n", {0: "none", 1: "cat"}, {0: 0, 0xFF0000: 1}),
        ("name,b,g,r\ncat,0,0,255\ndog,0,255,0\n", {1: "cat", 2: "dog"}, {0xFF0000: 1, 0x00FF00: 2}),
        ("name,r,g,b\ncat,1.0,0.5,0\ndog,0,0.5,1\n", {1: "cat", 2: "dog"}, {0xFF8000: 1, 0x0080FF: 2}),
    ],
)
def test_marks_that_belong_to_names_or_to_the_form_are_known(text, names, colors) -> None:
    table = read_table("t.txt", text.encode())
    assert (table.names, table.colors) == (names, colors)


WORDS = st.from_regex(r"[a-z]{2,8}( [a-z]{2,8})?", fullmatch=True).filter(
    lambda name: name not in ("name", "class", "label", "title", "text")
)


@st.composite
def tables(draw: st.DrawFn) -> list[tuple[int, str, tuple[int, int, int]]]:
    names = draw(st.lists(WORDS, min_size=3, max_size=6, unique=True))
    colors = draw(
        st.lists(st.tuples(*[st.integers(2, 254)] * 3), min_size=len(names), max_size=len(names), unique=True)
    )
    return [*zip(range(len(names)), names, colors, strict=True)]


@given(tables())
def test_a_table_written_in_any_form_is_read_as_it_was(rows) -> None:
    names = {value: name for value, name, _ in rows}
    colors = {red << 16 | green << 8 | blue: value for value, _, (red, green, blue) in rows}
    numbered = (
        ("a.txt", "".join(f"{value} {name} {r} {g} {b} 255\n" for value, name, (r, g, b) in rows)),
        ("a.label", "".join(f'{value} {r} {g} {b} 1 1 1 "{name}"\n' for value, name, (r, g, b) in rows)),
        ("a.csv", "id,name,r,g,b\n" + "".join(f"{v},{n},{r},{g},{b}\n" for v, n, (r, g, b) in rows)),
        ("a.tsv", "index\tname\tcolor\n" + "".join(f"{v}\t{n}\t#%02x%02x%02x\n" % c for v, n, c in rows)),
        ("a.json", json.dumps([{"id": value, "name": name, "color": color} for value, name, color in rows])),
    )
    for path, text in numbered:
        table = read_table(path, text.encode())
        assert (table.names, table.colors) == (names, colors), path
    plain = {"a.txt": "".join(f"{name}\n" for name in names.values()), "a.json": json.dumps(names)}
    for path, text in plain.items():
        assert from_table(read_table(path, text.encode()), 0).names == names, path
