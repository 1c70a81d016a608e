"""Read tables of any form: bytes, encodings, formats, the roles of columns. No torch, no setting of a training."""
