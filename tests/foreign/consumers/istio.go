// What istiod decodes: a spec as a message of istio.io/api, with its durations, enumerations and `oneof`s.

package main

import (
	"encoding/json"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"istio.io/api/networking/v1alpha3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Returns why a spec is no message of Istio; nothing for other objects.
func decoded(object *unstructured.Unstructured) []string {
	if object.GroupVersionKind().Group != "networking.istio.io" {
		return nil
	}
	messages := map[string]proto.Message{
		"DestinationRule": &v1alpha3.DestinationRule{},
		"EnvoyFilter":     &v1alpha3.EnvoyFilter{},
		"VirtualService":  &v1alpha3.VirtualService{},
	}
	message, found := messages[object.GetKind()]
	if !found {
		return []string{"not a known message"}
	}
	text, err := json.Marshal(object.Object["spec"])
	if err == nil {
		err = protojson.Unmarshal(text, message)
	}
	if err != nil {
		return []string{err.Error()}
	}
	return nil
}
