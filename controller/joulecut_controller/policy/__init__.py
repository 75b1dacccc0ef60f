"""What the operator wants, validated: `Policy` and how it is read."""
