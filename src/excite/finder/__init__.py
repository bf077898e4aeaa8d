"""L of anybody's model in one call: `find_learning_rate` trains it briefly at several rates, then all is as before."""

from excite.finder.one_call import find_learning_rate

__all__ = ["find_learning_rate"]
