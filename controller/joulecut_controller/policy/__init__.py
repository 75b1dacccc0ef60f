"""The operator's policy: values, schema, validation."""
