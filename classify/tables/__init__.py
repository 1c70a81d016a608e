"""Read tables of texts and labels: `read_table` is the door, `roles.find_columns` says which column is what."""
