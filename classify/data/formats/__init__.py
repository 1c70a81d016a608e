"""Forms that a table comes in: one file each, behind `classify.data.formats.base.Format`."""
