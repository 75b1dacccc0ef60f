{{- define "joulecut.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "joulecut.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "joulecut.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "joulecut.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* Labels that never change in the life of a release; selectors use only these. */}}
{{- define "joulecut.selector" -}}
app.kubernetes.io/name: {{ include "joulecut.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "joulecut.labels" -}}
{{ include "joulecut.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "joulecut.image" -}}
{{- $image := .image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- /* No permission except those added after it. */}}
{{- define "joulecut.noPrivilege" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* The profile of one process, for the securityContext of its container; without it the pod's. */}}
{{- define "joulecut.seccomp" -}}
{{- with .root.Values.seccomp.localhostDirectory -}}
seccompProfile: {type: Localhost, localhostProfile: {{ printf "%s/%s.json" . $.process }}}
{{- end -}}
{{- end }}

{{- define "joulecut.gpuEnv" -}}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
{{- if ne .Values.gpu.access "cdi" }}
- {name: NVIDIA_VISIBLE_DEVICES, value: all}
{{- end }}
{{- end }}

{{- /* The site settings that both processes of a node share. */}}
{{- define "joulecut.agentConfig" -}}
{{- $own := dict "device" "nvml" "state_dir" "/var/lib/joulecut-agent" -}}
{{- $grpcHost := ternary "0.0.0.0" "127.0.0.1" .Values.tls.enabled -}}
{{- $_ := set $own "listen" (dict
  "metrics" (printf "0.0.0.0:%d" (int .Values.agent.ports.metrics))
  "grpc" (printf "%s:%d" $grpcHost (int .Values.agent.ports.grpc))
  "socket" "/run/joulecut/jobs.sock") -}}
{{- $_ := set $own "keeper" (ternary "/var/lib/joulecut/keeper.sock" "none" .Values.keeper.enabled) -}}
{{- if .Values.agent.podResources -}}
{{- $kubelet := dict "pod_resources" "/var/lib/kubelet/pod-resources/kubelet.sock" "pods" (ternary "api" "none" .Values.agent.podApi) -}}
{{- $_ := set $own "attribution" (dict "kubernetes" $kubelet) -}}
{{- end -}}
{{- if .Values.agent.webConfigSecret -}}
{{- $_ := set $own "web_config" "/etc/joulecut-web/web.yml" -}}
{{- end -}}
{{- if .Values.tls.enabled -}}
{{- $_ := set $own "tls" (dict "cert" "/etc/joulecut-tls/tls.crt" "key" "/etc/joulecut-tls/tls.key" "client_ca" "/etc/joulecut-tls/ca.crt") -}}
{{- if not .Values.agent.config.access -}}
{{- $controller := list (include "joulecut.controllerName" .) -}}
{{- $_ := set $own "access" (dict "observe" $controller "clear" $controller "release" $controller "apply" $controller) -}}
{{- end -}}
{{- end -}}
{{- toYaml (merge $own .Values.agent.config) }}
{{- end }}

{{- define "joulecut.keeperConfig" -}}
{{- $own := dict "device" "nvml" "state_dir" "/var/lib/joulecut" -}}
{{- if .Values.keeper.journalDir -}}{{- $_ := set $own "journal_dir" "/run/joulecut-keeper" -}}{{- end -}}
{{- toYaml (merge $own (pick .Values.agent.config "lease" "bounds" "power" "site_default" "nvml")) }}
{{- end }}

{{- define "joulecut.agentStateDir" -}}
{{- .Values.agent.stateDir | default (.Values.keeper.enabled | ternary "/var/lib/joulecut-agent" "") }}
{{- end }}

{{- /* User and group of the agent: see agent.podResources. */}}
{{- define "joulecut.agentUser" -}}
{{- if .Values.agent.podResources -}}
runAsUser: 0
{{- else -}}
runAsNonRoot: true
runAsUser: {{ int .Values.agent.uid }}
{{- end }}
runAsGroup: {{ int .Values.agent.uid }}
{{- end }}

{{- /* A probe has no client certificate: where web.yml requires one, TCP checks the port only. */}}
{{- define "joulecut.probe" -}}
{{- if eq .scheme "TCP" -}}
tcpSocket: {port: {{ .port }}}
{{- else -}}
httpGet: {path: {{ .path }}, port: {{ .port }}{{ if ne .scheme "HTTP" }}, scheme: {{ .scheme }}{{ end }}}
{{- end }}
{{- end }}

{{- define "joulecut.controllerProbe" -}}
{{- $scheme := ternary .Values.controller.webConfigProbe "HTTPS" (ne .Values.controller.webConfigSecret "") -}}
{{- include "joulecut.probe" (dict "path" "/healthz" "port" "https" "scheme" $scheme) }}
{{- end }}

{{- define "joulecut.agentProbe" -}}
{{- $scheme := ternary .root.Values.agent.webConfigProbe "HTTP" (ne .root.Values.agent.webConfigSecret "") -}}
{{- include "joulecut.probe" (dict "path" .path "port" "metrics" "scheme" $scheme) }}
{{- end }}

{{- define "joulecut.agentSecret" -}}
{{- .Values.tls.agentSecret | default (printf "%s-agent-tls" (include "joulecut.fullname" .)) }}
{{- end }}

{{- define "joulecut.controllerSecret" -}}
{{- .Values.tls.controllerSecret | default (printf "%s-controller-tls" (include "joulecut.fullname" .)) }}
{{- end }}

{{- define "joulecut.controllerConfig" -}}
{{- $service := dict "name" (printf "%s-agent.%s.svc" (include "joulecut.fullname" .) .Release.Namespace) "port" (int .Values.agent.ports.grpc) -}}
{{- $own := dict "agents" (default (dict "dns" $service) .Values.controller.agents) "policy" "policy.yaml" "store" "sqlite:////var/lib/joulecut/store.db" -}}
{{- if .Values.controller.profilesVolume -}}
{{- $_ := set $own "profiles" "/etc/joulecut-profiles" -}}
{{- end -}}
{{- with .Values.controller.store }}
{{- if .secret }}
{{- $_ := set $own "store" (dict "url_file" (printf "/etc/joulecut-store/%s" .urlKey)) -}}
{{- if .passwordKey }}
{{- $_ := set $own.store "password_file" (printf "/etc/joulecut-store/%s" .passwordKey) -}}
{{- end }}
{{- end }}
{{- end }}
{{- $_ := set $own "listen" (dict "http" (printf "0.0.0.0:%d" (int .Values.controller.port))) -}}
{{- $_ := set $own "web_config" (ternary "/etc/joulecut-web/web.yml" "web.yml" (ne .Values.controller.webConfigSecret "")) -}}
{{- $_ := set $own "tls" (dict "cert" "/etc/joulecut-tls/tls.crt" "key" "/etc/joulecut-tls/tls.key" "ca" "/etc/joulecut-tls/ca.crt" "server_name" (include "joulecut.agentName" .)) -}}
{{- toYaml (merge $own .Values.controller.config) }}
{{- end }}

{{- /* Contradictions are refused before anything is applied, one line each. */}}
{{- define "joulecut.checks" -}}
{{- if .Values.controller.enabled }}
{{- if not .Values.tls.enabled }}
{{- fail "controller.enabled: needs tls.enabled: agents and controller authenticate by certificate" }}
{{- end }}
{{- if not (or .Values.tls.certManager.enabled .Values.tls.controllerSecret) }}
{{- fail "controller.enabled: needs tls.controllerSecret, or tls.certManager.enabled" }}
{{- end }}
{{- if and (gt (int .Values.controller.replicas) 1) (not .Values.controller.store.secret) }}
{{- fail "controller.replicas: more than 1 needs controller.store.secret: they share a PostgreSQL database" }}
{{- end }}
{{- if and .Values.controller.config.leader (not .Values.controller.store.secret) }}
{{- fail "controller.config.leader: needs controller.store.secret: a controller with a volume has no standby" }}
{{- end }}
{{- end }}
{{- if and .Values.agent.podApi (not .Values.agent.podResources) }}
{{- fail "agent.podApi: needs agent.podResources, which names the pods" }}
{{- end }}
{{- if and .Values.agent.jobsDir .Values.agent.podResources (not (and .Values.agent.hostPID .Values.agent.podApi)) (ne (dig "reports" "bind" "owner" .Values.agent.config) "any") }}
{{- fail "agent.jobsDir: with agent.podResources needs agent.hostPID and agent.podApi, because reports are checked against their pod; or agent.config.reports.bind: any" }}
{{- end }}
{{- if and .Values.agent.grpcHostPort (not .Values.tls.enabled) }}
{{- fail "agent.grpcHostPort: needs tls.enabled: without certificates the agent listens on loopback only" }}
{{- end }}
{{- if and .Values.tls.enabled (not .Values.tls.certManager.enabled) (not .Values.tls.agentSecret) }}
{{- fail "tls.enabled: needs tls.agentSecret, or tls.certManager.enabled" }}
{{- end }}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuerRef.name) }}
{{- fail "tls.certManager.issuerRef.name: is empty; allowed: the name of an Issuer" }}
{{- end }}
{{- end }}

{{- /* Names in certificates are roles of this release, not hosts, because agents change with nodes. */}}
{{- define "joulecut.agentName" -}}
agent.{{ include "joulecut.fullname" . }}.{{ .Release.Namespace }}
{{- end }}

{{- define "joulecut.controllerName" -}}
controller.{{ include "joulecut.fullname" . }}.{{ .Release.Namespace }}
{{- end }}

{{- define "joulecut.logFormat" -}}
{{- with .Values.logFormat }}{{- if ne . "text" }}, --log-format, {{ . }}{{- end }}{{- end }}
{{- end }}
