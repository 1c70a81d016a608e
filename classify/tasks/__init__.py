"""What depends on what a label is: one file a task, behind `classify.tasks.base.Task`."""
