"""The app: `hgemm board`, or `streamlit run leaderboard/app.py`. It names the pages; each of them is a thin script."""

from __future__ import annotations

import streamlit as st

PAGES = {
    "ranking": "Ranking",
    "submission": "Submission",
    "shape": "Shape",
    "compare": "Compare",
    "history": "History",
    "method": "Method",
    "published": "Published",
}


def main() -> None:
    """Run the page that the address names."""
    st.set_page_config(page_title="HGEMM Arena", layout="wide")
    pages = [
        st.Page(f"pages/{name}.py", title=title, url_path=name, default=name == "ranking") for name, title in PAGES.items()
    ]
    st.navigation(pages, position="top").run()


if __name__ == "__main__":
    main()
