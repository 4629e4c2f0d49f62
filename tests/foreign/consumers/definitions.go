// The steps of an API server for a new object, in its order, with its own code: fields that the schema does
// not have, defaults, the schema, metadata, keys of lists, and the rules in CEL.

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metadata "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	limits "k8s.io/apiserver/pkg/apis/cel"
)

// Kinds by version. Each is compiled when it is first used: the rules take a while.
type definitions map[schema.GroupVersionKind]func() (*definition, error)

// A version of a kind.
type definition struct {
	structural *structural.Structural
	schema     validation.SchemaValidator
	rules      *cel.Validator
}

// Adds each served version of a kind. Other objects in a file with definitions are ignored.
func (all definitions) add(document []byte) error {
	var read v1.CustomResourceDefinition
	if err := json.Unmarshal(document, &read); err != nil || read.Kind != "CustomResourceDefinition" {
		return err
	}
	for _, version := range read.Spec.Versions {
		if !version.Served {
			continue
		}
		kind := schema.GroupVersionKind{Group: read.Spec.Group, Version: version.Name, Kind: read.Spec.Names.Kind}
		published := version.Schema.OpenAPIV3Schema
		all[kind] = sync.OnceValues(func() (*definition, error) { return define(published) })
	}
	return nil
}

func define(published *v1.JSONSchemaProps) (*definition, error) {
	var internal apiextensions.JSONSchemaProps
	if err := v1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(published, &internal, nil); err != nil {
		return nil, err
	}
	shape, err := structural.NewStructural(&internal)
	if err != nil {
		return nil, err
	}
	checked, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
		return nil, err
	}
	return &definition{shape, checked, cel.NewValidator(shape, true, limits.PerCallLimit)}, nil
}

// Returns each reason to refuse an object.
func (all definitions) refusals(object *unstructured.Unstructured) []string {
	compiled, found := all[object.GroupVersionKind()]
	if !found {
		return []string{fmt.Sprintf("%v is not defined", object.GroupVersionKind())}
	}
	defined, err := compiled()
	if err != nil {
		return []string{err.Error()}
	}
	_, _, unknown, err := objectmeta.GetObjectMetaWithOptions(object.Object, objectmeta.ObjectMetaOptions{
		ReturnUnknownFieldPaths: true,
	})
	if err != nil {
		return []string{err.Error()}
	}
	options := structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
	unknown = append(unknown, pruning.PruneWithOptions(object.Object, defined.structural, true, options)...)
	var reasons []string
	for _, path := range unknown {
		reasons = append(reasons, fmt.Sprintf("unknown field %q", path))
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(object.Object, defined.structural)
	defaulting.Default(object.Object, defined.structural)

	ctx := context.Background()
	named := metadata.NameIsDNSSubdomain
	object.SetNamespace("default")
	problems := metadata.ValidateObjectMetaAccessor(object, true, named, field.NewPath("metadata"))
	problems = append(problems, validation.ValidateCustomResource(nil, object.Object, defined.schema)...)
	problems = append(problems, objectmeta.Validate(ctx, nil, object.Object, defined.structural, false)...)
	problems = append(problems, listtype.ValidateListSetsAndMaps(nil, defined.structural, object.Object)...)
	if len(problems) == 0 && defined.rules != nil {
		budget := int64(limits.RuntimeCELCostBudget)
		problems, _ = defined.rules.Validate(ctx, nil, defined.structural, object.Object, nil, budget)
	}
	for _, problem := range problems {
		reasons = append(reasons, problem.Error())
	}
	return append(reasons, decoded(object)...)
}
