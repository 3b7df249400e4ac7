{{- define "omni-jobs.labels" -}}
app.kubernetes.io/name: omni-jobs
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* The name of a worker's StatefulSet. Its pods' names are the hosts in the slots. */ -}}
{{- define "omni-jobs.workerName" -}}
{{ .root.Release.Name }}-{{ .worker.pipeline | replace "_" "-" }}-{{ .worker.stage | replace "_" "-" }}
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

{{- define "omni-jobs.mounts" -}}
- {name: secrets, mountPath: /run/omni-jobs/secrets, readOnly: true}
- {name: tmp, mountPath: /tmp}
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
    secretName: {{ .root.Values.secretName }}
    defaultMode: 0440
    items:
      - {key: database_url, path: database_url}
      - {key: broker_url, path: broker_url}
      - {key: s3_credentials, path: s3_credentials}
- name: tmp
  emptyDir: {sizeLimit: {{ .tmp | default "1Gi" }}}
{{- with .root.Values.stageConfigsConfigMap }}
- name: stage-configs
  configMap: {name: {{ . }}}
{{- end }}
{{- with .root.Values.modelsClaim }}
- name: models
  persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
{{- end }}
{{- end }}
