"""Method: how every figure is made, from the document that a test holds to the code."""

from __future__ import annotations

import streamlit as st

from leaderboard import ui
from leaderboard.documents import protocol_text


def render() -> None:
    """The page."""
    ui.begin("Method")
    st.markdown(protocol_text())


ui.run(render)
