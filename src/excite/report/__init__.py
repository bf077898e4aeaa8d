"""What came out, for people: tables, figures and the page."""

from typing import TYPE_CHECKING

from excite.lazy import lazily

if TYPE_CHECKING:
    from excite.report.page.page import write_page
    from excite.report.tables.estimates import estimates_table
    from excite.report.tables.excitation import excitation_facts, excitation_table
    from excite.report.tables.run_tables import table

__all__ = ["estimates_table", "excitation_facts", "excitation_table", "table", "write_page"]

__getattr__ = lazily(
    __name__,
    {
        "estimates_table": "tables.estimates",
        "excitation_facts": "tables.excitation",
        "excitation_table": "tables.excitation",
        "table": "tables.run_tables",
        "write_page": "page.page",
    },
)
