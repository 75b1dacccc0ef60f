"""Dashboards as code, so that a panel is reviewed as a query and not as 80 lines of JSON.

`python tools/dashboards` writes the JSON and the ConfigMaps; nothing here is installed.
"""
