"""Starting ranks: what is attached, fresh processes, one result per rank, and errors that name the rank."""
