{{- /* What the schema cannot see: values that contradict one another. Each is refused with a sentence. */ -}}
{{- define "omni-jobs.check" -}}
{{- include "omni-jobs.checkSecrets" . }}
{{- include "omni-jobs.checkSettings" . }}
{{- include "omni-jobs.checkProxy" . }}
{{- $names := dict }}
{{- range .Values.workers }}
{{- $worker := . }}
{{- $name := include "omni-jobs.workerName" (dict "root" $ "worker" .) }}
{{- $stage := printf "%s.%s" .pipeline .stage }}
{{- if hasKey $names $name }}{{ fail (printf "two workers would be named %s: raise replicas for more workers of a stage" $name) }}{{ end }}
{{- if gt (len $name) 52 }}{{ fail (printf "%s is longer than 52 characters: take a shorter name for the release" $name) }}{{ end }}
{{- $_ := set $names $name true }}
{{- range $server, $of := .servers }}
{{- if and $of.key (not $worker.serverKeysSecret) }}{{ fail (printf "the server %s of %s has a key: name the Secret that has it by serverKeysSecret" $server $stage) }}{{ end }}
{{- if and $of.authorities (not $.Values.tls.authorities.name) }}{{ fail (printf "the server %s of %s is verified by tls.authorities, which names none" $server $stage) }}{{ end }}
{{- end }}
{{- if .scaling }}
{{- if not $.Values.keda.enabled }}{{ fail (printf "the worker of %s has scaling, which needs keda.enabled" $stage) }}{{ end }}
{{- if hasKey . "replicas" }}{{ fail (printf "the worker of %s has replicas and scaling: KEDA sets their number, so leave one out" $stage) }}{{ end }}
{{- if gt (int .scaling.min) (int .scaling.max) }}{{ fail (printf "the worker of %s has a scaling.min above its scaling.max" $stage) }}{{ end }}
{{- end }}
{{- end }}
{{- if and .Values.models (not .Values.modelsClaim) }}{{ fail "models names directories below /models, where modelsClaim mounts nothing: name the claim" }}{{ end }}
{{- end }}

{{- /* Two roles with one Secret would have one identity. */ -}}
{{- define "omni-jobs.checkSecrets" -}}
{{- $roles := dict }}
{{- $named := .Values.secrets }}
{{- if .Values.tls.apiSecret }}{{ $named = merge (dict "the API's certificate" .Values.tls.apiSecret) $named }}{{ end }}
{{- range $role, $name := $named }}
{{- with get $roles $name }}{{ fail (printf "the Secret %s is that of two roles, %s and %s: make one for each" $name . $role) }}{{ end }}
{{- $_ := set $roles $name $role }}
{{- end }}
{{- range .Values.workers }}
{{- with .serverKeysSecret }}{{ if get $roles . }}{{ fail (printf "serverKeysSecret names the Secret %s of a role: make one for the servers" .) }}{{ end }}{{ end }}
{{- end }}
{{- with .Values.tls.authorities }}
{{- if and (eq .kind "Secret") (get $roles .name) }}{{ fail (printf "tls.authorities is in the Secret %s of a role, which other pods would mount: make one for it" .name) }}{{ end }}
{{- end }}
{{- end }}

{{- /* Behind a proxy the API lets whoever reaches it do everything, unless the proxy's header names a tenant. */ -}}
{{- define "omni-jobs.checkProxy" -}}
{{- $from := .Values.networkPolicies }}
{{- if ne .Values.api.auth "proxy" }}
{{- if .Values.api.tenantHeader }}{{ fail "api.tenantHeader is for the api.auth proxy alone" }}{{ end }}
{{- else }}
{{- if not .Values.api.tenantHeader }}{{ fail "api.auth is proxy: name the header in which it names the tenant by api.tenantHeader" }}{{ end }}
{{- if not $from.enabled }}{{ fail "api.auth is proxy, and whoever reaches the API without it may do everything: leave networkPolicies.enabled true" }}{{ end }}
{{- if has dict ($from.apiFromPods | default list) }}{{ fail "api.auth is proxy, and whoever reaches the API without it may do everything: name the proxy's pods alone by networkPolicies.apiFromPods, or none" }}{{ end }}
{{- if not (or $from.apiFromPods $from.apiFrom) }}{{ fail "api.auth is proxy, and no pod may reach the API: name the proxy's by networkPolicies.apiFromPods, or its namespace by apiFrom" }}{{ end }}
{{- end }}
{{- end }}

{{- define "omni-jobs.checkSettings" -}}
{{- $secret := list "OMNI_JOBS_DATABASE_URL" "OMNI_JOBS_BROKER_URL" "OMNI_JOBS_API_KEY" }}
{{- $ours := dict
  "OMNI_JOBS_STORAGE_URL" "storage.url"
  "OMNI_JOBS_S3_ENDPOINT_URL" "storage.endpointUrl"
  "OMNI_JOBS_STAGE_CONFIGS" "stageConfigsConfigMap"
  "OMNI_JOBS_PIPELINES" "workers"
  "OMNI_JOBS_MODELS" "models"
  "OMNI_JOBS_DEVICE" "workers"
  "OMNI_JOBS_GPU_MEMORY_UTILIZATION" "workers"
  "OMNI_JOBS_DRAIN_S" "drainSeconds"
  "OMNI_JOBS_LOAD_LOCKS_DIR" "workers[].loadLocksClaim"
  "OMNI_JOBS_ALLOWED_HOSTS" "api.hosts"
  "OMNI_JOBS_AUTH" "api.auth"
  "OMNI_JOBS_TENANT_HEADER" "api.tenantHeader"
  "OMNI_JOBS_TLS_CERTIFICATE" "tls.apiSecret"
  "OMNI_JOBS_TLS_KEY" "tls.apiSecret"
  "OMNI_JOBS_CA_FILE" "tls.authorities" }}
{{- $fixed := list "OMNI_JOBS_DATA_DIR" "OMNI_JOBS_API_HOST" "OMNI_JOBS_API_PORT" "OMNI_JOBS_URL" }}
{{- range $name, $_ := .Values.settings }}
{{- if eq $name "OMNI_JOBS_SERVERS" }}{{ fail "settings.OMNI_JOBS_SERVERS is made of the value workers[].servers: set that" }}{{ end }}
{{- if has (trimSuffix "_FILE" $name) $secret }}{{ fail (printf "settings.%s is or names a secret: it belongs into the Secrets that `secrets` names" $name) }}{{ end }}
{{- with get $ours $name }}{{ fail (printf "settings.%s is made of the value %s: set that" $name .) }}{{ end }}
{{- if has $name $fixed }}{{ fail (printf "settings.%s is set by the chart itself" $name) }}{{ end }}
{{- end }}
{{- end }}
