"""What programs on Lightning have in common."""

from __future__ import annotations

# No files, no bars.
TRAINER = {
    "accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
    "enable_model_summary": False,
}  # fmt: skip
