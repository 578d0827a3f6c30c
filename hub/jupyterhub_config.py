"""A JupyterHub for a room of 20 on one machine: a container for each participant, one folder that all share.

hub/README.md says what the machine needs, how to start it, and what each setting is for.
"""

import os

c = get_config()  # noqa: F821 (JupyterHub gives it)

c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = os.environ["DPCOURSE_HUB_PASSWORD"]  # one for the room
c.SharedPasswordAuthenticator.admin_password = os.environ.get("DPCOURSE_HUB_ADMIN_PASSWORD")
c.Authenticator.allow_all = True
c.Authenticator.admin_users = set(os.environ.get("DPCOURSE_HUB_ADMINS", "").split())

c.JupyterHub.spawner_class = "dockerspawner.DockerSpawner"
c.DockerSpawner.image = os.environ.get("DPCOURSE_HUB_IMAGE", "dpcourse-hub")
c.DockerSpawner.cmd = ["jupyterhub-singleuser"]
c.DockerSpawner.remove = True
c.JupyterHub.hub_ip = "0.0.0.0"  # containers have to reach the hub

# A learner's own work outlives the container; all see the room's folder.
c.DockerSpawner.notebook_dir = "/home/learner/dpcourse/my"
c.DockerSpawner.volumes = {
    "dpcourse-{username}": "/home/learner/dpcourse/my",
    os.environ.get("DPCOURSE_HUB_ROOM", "/srv/dpcourse-room"): "/srv/room",
}
c.DockerSpawner.environment = {"DPCOURSE_ROOM": "/srv/room"}

c.JupyterHub.active_server_limit = 24
c.JupyterHub.concurrent_spawn_limit = 5  # each copies the notebooks and loads JupyterLab
c.Spawner.cpu_limit = 4  # four ranks; not all run at once
c.Spawner.mem_limit = "3G"
c.Spawner.start_timeout = 120

# Emulated hosts need namespaces, which Docker's usual filter of system calls forbids. Without "security_opt"
# links are paced in user space instead, and every count is the same.
c.DockerSpawner.extra_host_config = {"security_opt": ["seccomp=unconfined"], "init": True}
