"""Results for people: tables, figures and the page."""

from typing import TYPE_CHECKING

from excite.lazy import lazily

if TYPE_CHECKING:
    from excite.report.estimates import estimates_table, excitation_facts, excitation_table
    from excite.report.page import write_page
    from excite.report.tables import table

__all__ = ["estimates_table", "excitation_facts", "excitation_table", "table", "write_page"]

__getattr__ = lazily(
    __name__,
    {
        "estimates_table": "estimates",
        "excitation_facts": "estimates",
        "excitation_table": "estimates",
        "table": "tables",
        "write_page": "page",
    },
)
