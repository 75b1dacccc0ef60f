"""The agents of the cluster as the controller reaches them."""
