"""Serve a trained folder over HTTP; needs the extra `serve`."""
