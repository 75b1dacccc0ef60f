"""What agent and controller both know: messages, job reports, metric names, errors."""
