"""What a run means, as pages that anyone can open: one file each, nothing fetched."""

from hocket.page.report_page import report_page, write_report_page

__all__ = ["report_page", "write_report_page"]
