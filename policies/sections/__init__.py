"""The sections of the pipeline file, one module each; `policies.pipeline` puts them together."""
