"""What came out, for people: the table and the page."""

from excite.report.page import write_page
from excite.report.table import table

__all__ = ["table", "write_page"]
