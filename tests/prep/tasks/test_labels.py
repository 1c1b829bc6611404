"""Label maps."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halofeed.errors import AnnotationsError
from halofeed.prep.annotations.labels import LabelMap, from_data, from_file

PBTXT = r"""
# The classes.
item {
  name: "/m/01" id: 3  # before the id
  display_name: 'Hat'
}
item: < id: 1, name: 'it''s'; keypoints { id: 9 label: "x" color: "#ff" } ancestor_ids: ["a", "b"] >
item { id: 90 name: "tab\t\"q\" \303\251" }
"""


def test_labels_of_the_data_are_sorted_after_a_layouts_own_order_from_0_or_1():
    assert from_data(["ten", "ace", "ten"], 1).names == {1: "ace", 2: "ten"}
    assert from_data(["ten", "ace"], 0).names == {0: "ace", 1: "ten"}
    assert from_data(["b", "z"], 1, order=["c", "b", "a"]).names == {1: "c", 2: "b", 3: "a", 4: "z"}
    assert from_file("l.txt", b"background\nhat\n", 0).names == {0: "background", 1: "hat"}


def test_files_of_each_kind_give_names_and_gaps():
    for name, text, expected in (
        ("l.txt", "hat\r\ncoat\r\n\n", {1: "hat", 2: "coat"}),
        ("l.txt", "\ufeffhat\n coat ", {1: "hat", 2: "coat"}),
        ("l.JSON", '["hat", "coat"]', {1: "hat", 2: "coat"}),
        ("l.json", '{"hat": 7, "coat": 2}', {2: "coat", 7: "hat"}),
        ("l.json", '{"7": "hat", "2": "coat"}', {2: "coat", 7: "hat"}),
        ("l.json", '{"7": 1, "2": 3}', {1: "7", 3: "2"}),
        ("l.pbtxt", PBTXT, {1: "its", 3: "/m/01", 90: 'tab\t"q" é'}),
        ("l.pbtxt", "item{id:1 display_name:'hat'}", {1: "hat"}),
    ):
        assert from_file(name, text.encode(), 1).names == expected


def test_ids_are_found_by_display_names_and_unknown_or_nul_names_refused():
    labels = from_file("l.pbtxt", PBTXT.encode(), 1)
    assert labels.id_of("Hat") == labels.id_of("/m/01") == 3
    with pytest.raises(AnnotationsError, match=r"label 'cap' is not in l\.txt; known: hat, coat"):
        from_file("l.txt", b"hat\ncoat\n", 1).id_of("cap")
    with pytest.raises(AnnotationsError, match=r"'h\\x00at'.* NUL character; rename"):
        from_data(["h\0at"], 0)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("l.txt", "hat\n\ncoat\n", ["l.txt:2", "blank line"]),
        ("l.txt", "", ["no class names"]),
        ("l.txt", "hat\nhat\n", ["'hat' comes twice", "1 and 2"]),
        ("l.txt", "background\nhat\n", ["id 1 is 'background'", "background and has no entry"]),
        ("l.json", '{"hat": 0, "coat": 1}', ["id 0 is 'hat'", "classes start at 1"]),
        ("l.json", '{"hat": 1, "coat": 1}', ["id 1 belongs to"]),
        ("l.json", '{"1": "hat", "1": "coat"}', ["key '1' comes twice"]),
        ("l.json", '{"-1": "hat"}', ["no class names"]),
        ("l.json", '{"1": true}', ["expected [", "l.json"]),
        ("l.json", "[1, 2]", ["expected ["]),
        ("l.json", "{", ["not a label map in JSON"]),
        ("l.pbtxt", 'item { id: 0 name: "none" }', ["id 0 is 'none'"]),
        ("l.pbtxt", 'item { id: 1 name: "hat" ', ["ends inside a message"]),
        ("l.pbtxt", 'item { id: 1 id: 2 name: "hat" }', ["id comes twice"]),
        ("l.pbtxt", 'item { name: "hat" }', ["integer id and a name"]),
        ("l.pbtxt", "item { id: 1 name: 'hat }", ["l.pbtxt:1", "not readable"]),
        ("l.pbtxt", "item { a " + "{ a " * 10_000, ["nested too deep"]),
        ("l.pbtxt", "1: hat", ["expected `item { ... }`"]),
        ("l.pbtxt", "item { id: 1 name: 'a' display_name: 'b' } item { id: 2 name: 'b' }", ["name 'b'"]),
        ("l.doc", "hat", [".txt", ".json", ".pbtxt"]),
        ("l.txt", b"\xff", ["UTF-8"]),
    ],
)
def test_a_wrong_map_names_the_file_and_the_fault(name, text, words):
    with pytest.raises(AnnotationsError) as caught:
        from_file(name, text if isinstance(text, bytes) else text.encode(), 1)
    for word in [*words, "l."]:
        assert word in str(caught.value)


NAMES = st.text(min_size=1).filter(
    lambda name: "\0" not in name and name.strip() and name.strip().lower().strip("_") != "background"
)


def maps(last: int) -> st.SearchStrategy[dict[int, str]]:
    """Names that differ, by ids from 1."""
    names = st.dictionaries(st.integers(1, last), NAMES, min_size=1)
    return names.filter(lambda some: len(set(some.values())) == len(some))


@given(maps(2**31 - 1))
def test_a_map_survives_json_and_pickling(names):
    labels = LabelMap(entries=tuple(names.items()), first_id=1)
    assert LabelMap.from_json(json.loads(json.dumps(labels.to_json()))) == labels
    assert pickle.loads(pickle.dumps(labels)) == labels
    assert all(labels.id_of(name) == identity for identity, name in names.items())


@given(maps(999))
def test_any_name_written_as_text_format_comes_back(names):
    def quote(name):
        return "".join(f"\\{byte:03o}" for byte in name.encode())

    text = "".join(f'item {{ id: {identity} name: "{quote(name)}" }}\n' for identity, name in names.items())
    assert from_file("l.pbtxt", text.encode(), 1).names == names
