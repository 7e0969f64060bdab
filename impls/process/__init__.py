"""Process layer: worker processes and pools of them, what a job may take, and what it may leave behind."""
