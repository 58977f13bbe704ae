"""What the console knows about a cluster: pages as values, and actions. No HTTP, no HTML.

    async with ClusterView("127.0.0.1:9876") as view:
        page = await view.topics(ListRequest(search="order", sort="lag"))
        print(as_json(page).decode())

`pages` has the values, `view.ClusterView` returns them, `actions` has what changes a cluster.
"""
