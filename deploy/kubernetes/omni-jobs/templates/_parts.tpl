{{- define "omni-jobs.labels" -}}
app.kubernetes.io/name: omni-jobs
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* The name of a worker's StatefulSet. Its pods' names are the hosts in the slots. */ -}}
{{- define "omni-jobs.workerName" -}}
{{ .root.Release.Name }}-{{ regexReplaceAll "[_@.]" .worker.pipeline "-" | lower }}-{{ .worker.stage | replace "_" "-" }}
{{- end }}

{{- define "omni-jobs.image" -}}
{{- $image := index .root.Values.images .name -}}
{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "omni-jobs.pod" -}}
serviceAccountName: {{ .root.Release.Name }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "omni-jobs.container" -}}
image: {{ include "omni-jobs.image" (dict "root" .root "name" .image) | quote }}
imagePullPolicy: {{ .root.Values.images.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
envFrom:
  - configMapRef: {name: {{ .root.Release.Name }}-settings}
{{- end }}

{{- /* What the processes of a role find in its Secret: the variables that name the files. */ -}}
{{- define "omni-jobs.identity" -}}
{{- $keys := list "database_url" "broker_url" "s3_credentials" -}}
{{- if eq .role "migrate" }}{{ $keys = list "owner_url" "database_url" }}{{ end -}}
{{- if eq .role "bucket" }}{{ $keys = list "s3_credentials" }}{{ end -}}
{{ toJson $keys }}
{{- end }}

{{- define "omni-jobs.identityVariables" -}}
{{- $variables := dict
  "owner_url" "OMNI_JOBS_DATABASE_URL_FILE"
  "database_url" (ternary "" "OMNI_JOBS_DATABASE_URL_FILE" (eq .role "migrate"))
  "broker_url" "OMNI_JOBS_BROKER_URL_FILE"
  "s3_credentials" "AWS_SHARED_CREDENTIALS_FILE" -}}
{{- range include "omni-jobs.identity" . | fromJsonArray }}
{{- $key := . }}
{{- with get $variables $key }}
- {name: {{ . }}, value: /run/omni-jobs/secrets/{{ $key }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "omni-jobs.mounts" -}}
- {name: secrets, mountPath: /run/omni-jobs/secrets, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- if .root.Values.tls.authorities.name }}
- {name: authorities, mountPath: /etc/omni-jobs/authorities, readOnly: true}
{{- end }}
{{- if .root.Values.stageConfigsConfigMap }}
- {name: stage-configs, mountPath: /etc/omni-jobs/stage_configs, readOnly: true}
{{- end }}
{{- if .root.Values.modelsClaim }}
- {name: models, mountPath: /models, readOnly: true}
{{- end }}
{{- end }}

{{- define "omni-jobs.volumes" -}}
- name: secrets
  secret:
    secretName: {{ get .root.Values.secrets .role }}
    defaultMode: 0440
    items:
      {{- range include "omni-jobs.identity" . | fromJsonArray }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
- name: tmp
  emptyDir: {sizeLimit: {{ .tmp | default "1Gi" }}}
{{- with .root.Values.tls.authorities }}
{{- if .name }}
- name: authorities
  {{- if eq .kind "Secret" }}
  secret:
    secretName: {{ .name }}
    defaultMode: 0440
  {{- else }}
  configMap:
    name: {{ .name }}
  {{- end }}
    items:
      - {key: {{ .key }}, path: ca.crt}
{{- end }}
{{- end }}
{{- with .root.Values.stageConfigsConfigMap }}
- name: stage-configs
  configMap: {name: {{ . }}}
{{- end }}
{{- with .root.Values.modelsClaim }}
- name: models
  persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
{{- end }}
{{- end }}

{{- /* OMNI_JOBS_SERVERS of a worker: the files of its servers' keys in place of the keys. */ -}}
{{- define "omni-jobs.servers" -}}
{{- $servers := dict }}
{{- range $name, $of := . }}
{{- $server := dict "url" $of.url }}
{{- with $of.key }}{{ $_ := set $server "key_file" (print "/run/omni-jobs/servers/" .) }}{{ end }}
{{- if $of.authorities }}{{ $_ := set $server "ca_file" "/etc/omni-jobs/authorities/ca.crt" }}{{ end }}
{{- $_ := set $servers $name $server }}
{{- end }}
{{- toJson $servers }}
{{- end }}
