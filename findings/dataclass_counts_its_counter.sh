#!/usr/bin/env bash
# dataclasses.asdict makes of a field Counter(a=2) a Counter of the pair: {("a", 2): 1}. dict and OrderedDict keep their items.
# Python 3.11 to 3.13, standard library. One expects a copy: the documentation says that dicts are recursed into.
# Source: asdict builds the copy as type(value)(pairs), and Counter(pairs) counts its argument's elements.
# Why here: counts of rejects by reason go through JSON, which then fails for keys that are no texts, or holds wrong counts.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > main.py <<'END'
import sys
from collections import Counter, OrderedDict
from dataclasses import asdict, dataclass


@dataclass
class Outcome:
    rejected: object


print("Python", sys.version.split()[0])
for made in ({"a": 2}, OrderedDict(a=2), Counter(a=2)):
    found = asdict(Outcome(made))["rejected"]
    print(repr(made), "->", repr(found))
    assert (found == made) == (not isinstance(made, Counter))
assert asdict(Outcome(Counter(a=2)))["rejected"] == {("a", 2): 1}
END
"${PYTHON:-python3}" main.py
