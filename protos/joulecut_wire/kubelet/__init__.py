"""What the kubelet says of its pods' devices: the few messages that an agent asks for."""
