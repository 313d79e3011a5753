"""Alembic's environment: runs on the connection that `leaderboard.database.upgrade` hands over."""

from __future__ import annotations

from alembic import context

from leaderboard.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
