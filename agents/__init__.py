"""The reference agent: it proposes kernel configurations and is paid in measured speed."""
