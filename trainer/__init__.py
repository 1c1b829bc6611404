"""Training steps on a spatial partition, in JAX: an optional extra (`pip install halofeed[train]`)."""

if __name__ != "halofeed.trainer":
    # In a checkout's root the part can be imported by its bare name. That would make a second copy of each module,
    # whose classes differ from those of the first.
    raise ImportError(f"{__name__} is halofeed's part trainer: write import halofeed.trainer")

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halofeed.trainer.gradient_check import check_gradients
else:

    def __getattr__(name: str) -> Any:
        # Imported when it is used first: it needs JAX, and `trainer.platform` is imported before JAX.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from halofeed.trainer.gradient_check import check_gradients

        return check_gradients


__all__ = ["check_gradients"]
