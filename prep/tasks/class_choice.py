"""Which classes of the source become which classes of the data set: kept, renamed, merged or left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from halofeed.prep.tasks.class_order import some_of
from halofeed.prep.tasks.lookalikes import look_of
from halofeed.schemas.errors import AnnotationsError, SourceError

BACKGROUND = "background"


@dataclass(frozen=True, kw_only=True)
class ClassChoice:
    """What becomes of each class of the source.

    Args:
        keep: the classes of the data set; (): all. Others are left out.
        renamed: (class of the source by name or value, class of the data set); several may become one, and what becomes
            "background" is left out.
    """

    keep: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, classes: tuple[str, ...], map_classes: tuple[str, ...]) -> ClassChoice:
        """That of --classes and --map-classes.

        >>> ClassChoice.of((), ("kidney left=kidney", "500=background")).renamed
        (('kidney left', 'kidney'), ('500', 'background'))
        """
        pairs = (part.rpartition("=") for part in map_classes)
        return cls(keep=classes, renamed=tuple((name.strip(), target.strip()) for name, _, target in pairs))

    def __bool__(self) -> bool:
        return bool(self.keep or self.renamed)

    def problems(self) -> Iterator[str]:
        """What is wrong with it by itself."""
        names = [name for name, _ in self.renamed]
        for name, target in self.renamed:
            if not name or not target:
                yield (
                    f"--map-classes {name}={target}: expected FROM=TO, such as 'kidney left=kidney' or 500=1; "
                    f"TO {BACKGROUND} leaves the class out"
                )
        if twice := sorted({name for name in names if names.count(name) > 1}):
            yield f"--map-classes: {', '.join(twice)} comes twice; say once what becomes of it"
        targets = {target for _, target in self.renamed}
        if both := [name for name in self.keep if (name, BACKGROUND) in self.renamed and name not in targets]:
            yield f"--classes: {', '.join(both)} is left out by --map-classes; take it out of --classes or of that"
        if len(set(self.keep)) < len(self.keep) or "" in self.keep:
            yield f"--classes: expected different names, got {','.join(self.keep)}"
        if BACKGROUND in self.keep:
            yield f"--classes: {BACKGROUND} is always there, with id 0; leave it out"

    def target(self, name: str, value: int | None = None) -> str | None:
        """The class of the data set that a class of the source becomes; None: it is left out.

        >>> choice = ClassChoice(keep=("kidney",), renamed=(("left", "kidney"), ("7", "kidney")))
        >>> [choice.target("left"), choice.target("right", 7), choice.target("liver")]
        ['kidney', 'kidney', None]
        """
        renamed = dict(self.renamed)
        found = renamed.get(name, name if value is None else renamed.get(str(value), name))
        if found == BACKGROUND or (self.keep and found not in self.keep):
            return None
        return found

    def takes(self, name: str) -> bool:
        """Whether a named class of a label file is kept.

        Raises:
            SourceError: it is left out, and differs from a class of the choice in capitals, spaces and the like alone.

        >>> choice = ClassChoice(keep=("tumor",), renamed=(("left kidney", "tumor"), ("Tumor", "background")))
        >>> choice.takes("tumor"), choice.takes("Tumor"), choice.takes("liver")
        (True, False, False)
        """
        if self.target(name) is not None:
            return True
        renamed = dict(self.renamed)
        if name not in renamed:
            chosen = {kept: kept for kept in self.keep} | renamed
            if twin := next((other for other in chosen if plain_name(other) == plain_name(name)), None):
                raise SourceError(
                    "annotation",
                    "class is that of the choice but for its spelling",
                    f"{name!r} and {twin!r}; --map-classes '{name}={chosen[twin]}' takes it, '{name}={BACKGROUND}' "
                    "leaves it out",
                )
        return False

    def check_known(self, known: Iterable[str], where: str) -> None:
        """Refuse names that are no class of the source, which would change nothing or leave all of it out.

        Args:
            known: the names and values of the source's classes.
            where: the source, for the message.

        Raises:
            AnnotationsError: names them, and the classes that there are.
        """
        names = list(dict.fromkeys(known))
        found = f"no such class in {where}; found {some_of(names)}"
        if unknown := [name for name, _ in self.renamed if name not in names]:
            raise AnnotationsError(f"--map-classes: {', '.join(unknown)}: {found}")
        targets = {target for target in map(self.target, names) if target is not None}
        if absent := [name for name in self.keep if name not in targets]:
            raise AnnotationsError(f"--classes: {', '.join(absent)}: {found}")


def plain_name(name: str) -> str:
    """A name without what people write in several ways.

    >>> plain_name("Left_Kidney") == plain_name("left kidney ")
    True
    """
    return look_of(name).replace(" ", "")
