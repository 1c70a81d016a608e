"""Tasks, one file each; `classify.tasks.base.Task` is their interface."""
