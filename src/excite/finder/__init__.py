"""L of any model in one call: `find_learning_rate` trains it briefly at several rates and then restores everything."""

from excite.finder.one_call import find_learning_rate

__all__ = ["find_learning_rate"]
