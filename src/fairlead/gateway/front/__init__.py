"""What a gateway answers on its data port before any backend does: closed paths, and the list of models."""
