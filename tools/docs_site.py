"""What mkdocs is told beyond mkdocs.yml: README is the first page, and links to files that are not
on the site become their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

_ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+)(#[^)]*)?\)")


def slug(heading: str, separator: str) -> str:
    """The anchor of a heading, as code hosts make them."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    """Name anchors as `slug` does."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add README as index.md."""
    text = (_ROOT / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Leave links to pages as they are; the text of any other stays alone."""
    here = (_ROOT / "docs" / page.file.src_uri).parent

    def settle(found: re.Match[str]) -> str:
        text, path, anchor = found[1], found[2], found[3] or ""
        target = (here / path).resolve()
        if target == _ROOT / "README.md":
            depth = page.file.src_uri.count("/")
            return f"[{text}]({'../' * depth}index.md{anchor})"
        if target.is_relative_to(_ROOT / "docs") and target.is_file():
            return found[0]
        if page.file.src_uri != "index.md" and not target.exists():
            return found[0]  # mkdocs says that it is broken
        return text

    return _LINK.sub(settle, markdown)
