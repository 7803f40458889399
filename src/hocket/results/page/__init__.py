"""What a run means, as pages that anyone can open: one file each, nothing fetched."""

from hocket.results.page.compare_page import compare_page, write_compare_page
from hocket.results.page.report_page import FILE_NAME, report_page, write_report_page

__all__ = ["FILE_NAME", "compare_page", "report_page", "write_compare_page", "write_report_page"]
