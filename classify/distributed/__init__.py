"""The process group and a process's place in it; nobody else acts on ranks."""
