"""Forms that a table comes in: one file each, behind `classify.tables.formats.base.Format`."""
