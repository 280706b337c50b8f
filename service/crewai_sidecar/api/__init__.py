"""The contract over HTTP: parsing, answers, streams, problems. The only package that knows HTTP."""
